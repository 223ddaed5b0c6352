package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/allocnode/allocnode/internal/wire"
)

func TestID(t *testing.T) {
	id := wire.ID{0x01, 0xab, 15: 0xff}
	const text = "01ab00000000000000000000000000ff"
	if got := id.String(); got != text {
		t.Errorf("got %s, want %s", got, text)
	}
	if got, err := wire.ParseID(text); err != nil || got != id {
		t.Errorf("got %s, error %v", got, err)
	}
	if id.IsZero() || !(wire.ID{}).IsZero() {
		t.Error("zero")
	}
	if got := (wire.Digest(id)).String(); got != text {
		t.Errorf("digest %s", got)
	}
	if a, b := wire.NewID(), wire.NewID(); a == b || a.IsZero() {
		t.Errorf("two new ids: %s, %s", a, b)
	}
	for _, bad := range []string{"", text[1:], text + "0", "0x" + text[2:], text[:31] + "g", " " + text[1:]} {
		got, err := wire.ParseID(bad)
		if err == nil {
			t.Errorf("%q: %s", bad, got)
		}
	}
	b, err := json.Marshal(map[string]wire.ID{"id": id})
	if err != nil || string(b) != `{"id":"`+text+`"}` {
		t.Errorf("%s, error %v", b, err)
	}
	var back struct{ ID wire.ID }
	if err := json.Unmarshal(b, &back); err != nil || back.ID != id {
		t.Errorf("%s, error %v", back.ID, err)
	}
}
