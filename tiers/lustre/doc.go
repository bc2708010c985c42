// Package lustre is the cold tier: it adapts lustre/segment to tiers.Tier.
//
// Its words are those of lustre/segment, and what a tier is stands in tiers.
//
// Blocks are durable when Put returns. Names recorded by Link and Unlink are
// durable after the next Put, Sync or Close. Evict only forgets: a block whose
// segment is still there comes back with the next incarnation, with its names
// unless they were withdrawn.
//
// # Contexts
//
// A call to a file system whose server is gone cannot be interrupted. ReadInto,
// ReadBatch, ReadSegment and Put return when their context ends, with an error that is a
// *Busy (use errors.As) and matches tiers.ErrUnavailable. The kernel may still write to
// dst, or read Data, until Busy.Done is closed: the owner of that memory must
// not reuse or unmap it before. After any other return the memory is the
// caller's. A context without deadline waits as long as the file system does.
//
// # Encoding
//
// With Options.Compress blocks are stored in fewer bytes where that pays. What
// was stored so is read whatever the option says.
//
// The package decides nothing: no policy, no eviction, no retries.
package lustre
