package main

import (
	"fmt"
	"slices"

	"github.com/allocnode/allocnode/bench/report"
	"github.com/allocnode/allocnode/bench/systems"
)

// targets computes what the comparison has to show. Where a target speaks of a system that has several rows, each has a line of
// its own or, where it says so, the best of them counts.
func targets(r *report.Report) []report.Ratio {
	rate := func(name string, callers int, bound float64, others ...string) report.Ratio {
		return r.RateOf(fmt.Sprintf("R3 reserve : %s, %d in flight, rate", name, callers), systems.Reserve, callers, bound, false, others...)
	}
	ahead := func(name string, callers int, others ...string) report.Ratio {
		return r.RateOf(fmt.Sprintf("R3 reserve : %s, %d in flight, rate", name, callers), systems.Reserve, callers, 1, true, others...)
	}
	return []report.Ratio{
		rate("core NATS echo", 2048, 0.9, systems.Echo),
		rate("core NATS echo, responder inside", 2048, 0.9, systems.EchoInProcess),
		rate("core NATS echo", 256, 0.5, systems.Echo),
		rate("core NATS echo, responder inside", 256, 0.5, systems.EchoInProcess),
		r.P50Of("R3 reserve : R3 publish awaited, 1 in flight, p50", systems.Reserve, 1, 1.15, systems.Publish),
		rate("etcd's best", 256, 4, systems.EtcdPut, systems.EtcdCAS),
		rate("NATS counter", 256, 4, systems.NATSCounter),
		rate("NATS KV compare-and-swap", 256, 100, systems.NATSCAS),
		ahead("Redis, 1 copy", 2048, systems.RedisIncr),
		ahead("Redis pipelined by the client, 1 copy", 2048, systems.RedisPipe),
		ahead("PostgreSQL nextval CACHE 1, 1 copy", 2048, systems.Nextval),
		nextAhead(r),
		r.RateOf("R3 reserve, 100,000 sequences : 1 sequence, 256 in flight, rate", systems.ReserveMany, 256, 0.9, false, systems.Reserve),
		r.RateOf("R3 reserve, 100,000 sequences : 1 sequence, 2048 in flight, rate", systems.ReserveMany, 2048, 0.9, false, systems.Reserve),
		report.NotHere("resident memory of a node with 100,000 sequences, MB", "not by this command", 200, true),
		report.NotHere("start with 1,000,000 entries behind it, s", "not by this command", 10, true),
	}
}

// nextAhead compares Sequence.Next with the best generator at each concurrency; the worst of them counts.
func nextAhead(r *report.Report) report.Ratio {
	var ratios []report.Ratio
	var of []string
	var callers []int
	for _, c := range r.Cells {
		if c.System == systems.Next && !slices.Contains(callers, c.Callers) {
			callers = append(callers, c.Callers)
		}
	}
	for _, n := range callers {
		ratios = append(ratios, r.RateOf("", systems.Next, n, 1, true, systems.Sonyflake, systems.Snowflake, systems.ULID, systems.UUID))
		of = append(of, fmt.Sprintf("%d in flight", n))
	}
	x := report.Worst("Sequence.Next : the best generator, at its worst concurrency, rate", ratios, of)
	x.Bound, x.Strict = 1, true
	return x
}
