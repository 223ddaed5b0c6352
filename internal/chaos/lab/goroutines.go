//go:build linux

package lab

import (
	"encoding/json"
	"fmt"
	"time"
)

// Goroutines is how many a node's process has, with where they are: nats-server tells the system account of any member,
// and its process is the node's. Nothing of the node has to be there for it.
func (o *Observer) Goroutines(node string) (total int, profile []byte, err error) {
	body := fmt.Appendf(nil, `{"server_name":%q,"exact_match":true,"name":"goroutine","debug":1}`, node)
	m, err := o.system.Request("$SYS.REQ.SERVER.PING.PROFILEZ", body, 2*time.Second)
	if err != nil {
		return 0, nil, fmt.Errorf("count the goroutines of %s: %w", node, err)
	}
	total, profile, err = readGoroutines(node, m.Data)
	if err != nil {
		return 0, nil, fmt.Errorf("count the goroutines of %s: %w", node, err)
	}
	return total, profile, nil
}

// readGoroutines reads the answer of one server, which must be the one that was asked for.
func readGoroutines(node string, data []byte) (total int, profile []byte, err error) {
	var a struct {
		Server struct {
			Name string `json:"name"`
		} `json:"server"`
		Data struct {
			Profile []byte `json:"profile"`
			Error   string `json:"error"`
		} `json:"data"`
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return 0, nil, err
	}
	if a.Server.Name != node || a.Data.Error != "" {
		return 0, nil, fmt.Errorf("%s answers: %s", a.Server.Name, a.Data.Error)
	}
	if k, err := fmt.Sscanf(string(a.Data.Profile), "goroutine profile: total %d", &total); k != 1 || total < 1 {
		return 0, nil, fmt.Errorf("a profile without its total: %w", err)
	}
	return total, a.Data.Profile, nil
}
