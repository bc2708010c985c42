// Package content has the ranks of a job keep one durable copy of equal bytes, under
// however many names. The homes of ids (directory.Contents) know which rank keeps the
// bytes of an id in segments, and which are about to write them. A rank asks before it
// writes a block: where another one has the bytes durably, that one is entrusted with
// the names, and what is in memory here is a copy that may go; where another one was
// first to claim them, the block waits for it a while. A copy whose keeper has the bytes
// no more is claimed again (writeback looks for those). Where two ranks have written the
// same bytes, the one of the higher number gives them up.
//
// The package does not move bytes, decides nothing about what stays in memory, and is not
// asked on the way of a put or a get.
package content
