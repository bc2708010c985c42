// Package codec makes the payloads of blocks smaller on their way to a segment
// and whole again on their way back. docs/format.md §4 describes the bytes.
//
// Glossary
//
//	codec    the number in a BLOCK entry for how its payload is stored
//	piece    a run of a block that is encoded by itself, of at most 256 KiB
//	plane    every second (or fourth) byte of a piece. The high bytes of
//	         neighbouring floats are alike, the low ones are noise; side by
//	         side in planes the former compress and the latter do not disturb
//	sample   a few KiB of a block that stand for all of it
//	effort   how hard zstd searches: Huffman coding alone, or matches too.
//	         Both give frames that any zstd decoder reads
//
// Who decides: Encode tries all codecs on a sample of the first block of a
// stream and takes the best, or none, if the saving in pages is at least
// MinSaving. The next blocks of the stream follow that decision without a
// sample, for 1, 2, 4, … 64 blocks as long as samples confirm it. A block that
// does not save as much as it should is stored as it is, and the next one is
// sampled; if even the block that was sampled does not, the stream is left
// alone for 2, 4, … 64 blocks (choose.go).
//
// Memory: sources and destinations are the caller's. Inside are at most Workers
// encoders and as many decoders, made when they are first needed, each with
// half a MiB of room for pieces and zstd's tables; callers beyond that number
// wait for one.
//
// Who only looks at blocks, to compute their ids, decodes them piece by piece
// (DecodeFrom), without memory for a whole one.
//
// The package keeps no checksums: the CRC32C of the block and of the payload as
// stored are the caller's, who should check the latter before decoding. The
// decoder is safe on hostile input all the same: it writes nothing outside of
// its destination, needs no memory that the input asks for, and reports
// ErrCorrupt. It does no I/O and has no notion of files, names or tensors.
package codec
