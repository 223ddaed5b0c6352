// Package kv is the catalog: the node's state with the cursor it belongs to, on badger.
//
// The log is the truth. The catalog makes a start quick, and it is a witness of what the log once held. It stores opaque
// records and knows nothing of sequences. It owns one directory:
//
//	dir/            locked (flock) while a Catalog is open
//	dir/witness     side file: identity and a lower bound of the witness, replaced by rename, fsynced
//	dir/badger/     the records
//	dir/fence       why the node must not issue ids, if it must not; replaced by rename, into blocks held in fence.reserve
//	dir/clean       the head at which the node was stopped in order; absent while it runs
//	dir/badger.epoch-N/    states of epochs that are over; kept
//	dir/badger.broken-N/   states that were set aside; the newest two are kept, for whoever wants to look
//
// Keys in badger, all integers big-endian:
//
//	0x01           identity:  'I' | format(1) | mode(1) | catalog id(16) | name length(1) | name | crc32c(4)
//	0x02           head:      'H' | version(1) | cluster id(16) | epoch(8) | cursor(8) | digest(16) | sum(16) | crc32c(4)
//	0x03           witness:   'W' | the same, sum zero; digest zero where the state at cursor was another than the other nodes'
//	0x10 | key     one record of state
//
// The side file is an identity and a witness, one after the other. mode is 1 (alone), 2 (clustered) or 3 (external).
// crc32c covers all bytes before it. sum is the sum modulo 2^128, over all records, of the first 16 bytes of
// SHA-256(uvarint(len(key)) | key | value): order-independent, so that a commit can subtract the old record and add the
// new one. What to subtract is remembered (hashes.go).
//
// Invariants:
//  1. Records, head, sum and witness change in one badger transaction or not at all.
//  2. The stored cursor goes up by exactly the entries committed: no older value ever overwrites a newer one. It begins at 1, or
//     in an epoch above 1 anywhere.
//  3. What Load hands out with a nil error is exactly what was committed at its head. Anything else drops the state.
//  4. The witness never falls, and dropping the state leaves it (if badger itself is unreadable: the side file's bound).
//
// The side file runs ahead of badger: it is written before the transaction that made it due (first commit, change of
// cluster id or epoch, 10 s, 4,096 entries) and at Close. That is true to its meaning, since a delta exists only for an entry
// that the log held. So a broken badger costs at most 10 s or 4,096 entries of evidence.
//
// What badger v4.9.6 does with faults, read in its source, and what is done about it here:
//   - It writes its WAL and its tables through memory maps of sparse files. On a full disk that is a SIGBUS in a goroutine
//     of badger's, which ends the process (seen on a full tmpfs). So Open and Commit want free space first (see minFree) and
//     refuse with ErrNoSpace, and each WAL gets its blocks as soon as it is there (allocate_linux.go). Another writer that takes
//     the last 64 MiB within the one commit that begins a WAL, or while a table is written, can still cause it (once in some
//     8 MiB); a restart then refuses.
//   - A damaged table ends the process (a nil dereference in Table.VerifyChecksum, in a goroutine), or is left out in
//     silence; a damaged length in a WAL asks for up to 12 GB of memory. So Open reads tables and WALs itself first
//     (preflight.go).
//   - The replay of a WAL stops at the first bad entry: what follows is lost. If that is a middle, the sum finds it; if it is
//     the end, the state is an older one that is right for its cursor.
//   - When fsync fails, the records are in the memtable all the same, and the kernel may call the pages clean. The retry
//     therefore takes its sum from the stored head, and reads what it overwrites, in the same transaction. Until the memtable has turned over a power cut
//     may then still cost a suffix, or a middle, which the sum finds.
//   - When its flush to a table fails it retries for ever, and Commit and Close wait: the Committer reports such a stall.
//   - A directory is not fsynced when a WAL is created: on a file system without ordered metadata a power cut may cost a
//     suffix.
//
// Goroutines: badger's own, and [Committer.Run], which is the caller's. Load, Commit, SetAside and Close must not overlap; the
// other methods may be called from anywhere. The package needs flock and statfs: Linux, macOS.
package kv
