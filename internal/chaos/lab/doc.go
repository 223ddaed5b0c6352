// Package lab is a small computer centre on one Linux machine, whose faults are real and can be proved.
//
//	campaign process                      namespace <run>-n1                 its own ext4
//	┌─────────────────────────┐  TAP ┌──────────────────────────┐  loop  ┌────────────┐
//	│ Switch: a Rule for each ├──────┤ allocnode serve, cgroup  ├────────┤ n1/disk.img│
//	│ pair and direction      ├──┐   └──────────────────────────┘        └────────────┘
//	└─────────────────────────┘  ├── n2, n3 …, and namespaces for clients and for the observer
//
// It owns the namespaces, the switch between them, the disks, the processes and the control groups. It knows nothing of what
// is a violation, nor of when to do what: that is package chaos. Every fault returns a proof that it took effect (frames
// dropped, an unsynced file gone, a process in state T), or an error: a fault without an effect proves nothing.
//
// The nodes are the product's own binary. Two things are built in from outside, by go build's overlay: an offset of the wall
// clock ([BuildNode]), and, for the positive control alone, the loss of sync_interval always. The log is read, and leaders
// are moved, through an observer: a nats-server without JetStream that is a member of the cluster, since whoever reaches the
// port of the routes is taken for a node. Its namespace is never cut off; messages that come over one route are not sent on
// over another, so it bridges no partition.
//
// Everything has the run's name, and [Lab.Close] removes it. What a run left that was killed is found and removed by the
// next one ([Sweep]).
//
// # Goroutines
//
// The switch has one for each port and one for frames that are late; each process has one that waits for its end. All have
// ended when Close returns.
//
// # Invariants
//
//  1. A thread that entered a namespace leaves it again before other goroutines may use it, or ends.
//  2. A frame that a Rule drops is counted before the next is read, so that counters are proofs.
//  3. No process of a run outlives the campaign: each has SIGKILL for the death of its parent.
package lab
