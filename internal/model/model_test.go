package model

import (
	"testing"
	"time"
)

func TestTry(t *testing.T) {
	b := budget{crashes: 1, copies: 1, giveUps: 1}
	b.ops = [kinds]uint8{keyed: 2, plain: 1, advance: 0, refill: 0}
	w := world{nodes: 2, log: 3, budget: b}
	at := time.Now()
	t.Log(w.search(all), time.Since(at))
}
