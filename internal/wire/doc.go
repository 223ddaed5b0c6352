// Package wire is every byte that crosses a process: the entries of the log, and the requests and replies of the
// service. It owns the formats and their bounds, and nothing else: it keeps no state and starts no goroutine.
//
// # An entry
//
// One message of the log. All integers beyond the envelope are uvarints, all strings carry their length first.
//
//	 0      2     3         7                 23
//	+------+-----+---------+-----------------+------+
//	| A10C | ver | crc32c  | cluster id (16) | body |
//	+------+-----+---------+-----------------+------+
//	             big endian, over everything but itself
//
//	body (version 1):
//	+-------+------+------------------+---------+--------+-------------+-------------+----------+-----+
//	| level | node | incarnation (16) | counter | cursor | digest (16) | auto create | defaults | ops |
//	+-------+------+------------------+---------+--------+-------------+-------------+----------+-----+
//
// The operations follow one another to the end of the entry; [AppendOp] draws them.
//
// # Invariants
//
//  1. Encoding is a function of its input: a retry under one entry id carries the same bytes.
//  2. A decoder takes all of its input or returns an error; it never panics and never keeps a part.
//  3. What decodes is within bounds: names, keys, settings, the number of operations.
//  4. Every format is versioned and has golden bytes under testdata.
package wire
