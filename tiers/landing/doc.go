// Package landing is a bounded pool of memory for blocks that are read from
// elsewhere and stay in no tier: the bytes land here, are handed to whoever
// asked, and the room is given back.
//
// Glossary
//
//	room   memory for one block, exclusively its taker's until released
//	ready  touched, so that a read does not pay for the first touch; it grows in
//	       the background from the start, and only ready memory is handed out
//
// The memory is mapped, outside Go's heap, and never moves, so that kernels and
// network adapters may write to it. Nobody waits for room: without any, the
// caller falls back on not serving the block from elsewhere. The package knows
// no blocks, checks no bytes and is no tier: nothing can be found in it.
package landing
