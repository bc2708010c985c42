package fabric

import (
	"context"
	"sync"
)

// MaxBatch bounds the reads of one ReadBatch.
const MaxBatch = 64

// Read is one of several blocks that are read together.
type Read struct {
	Source Source
	Dst    []byte
	Err    error // how it went
}

// BatchReader is implemented by fabrics that read several blocks of a peer with
// fewer messages than one for each.
type BatchReader interface {
	// ReadBatch is what the function ReadBatch does.
	ReadBatch(ctx context.Context, from Rank, reads []Read)
}

// ReadBatch does for each of reads what Fabric.Read does, and sets its Err. The
// fabric may read them one after the other, so together they should be no more
// than one stream moves in a moment.
func ReadBatch(ctx context.Context, f Fabric, from Rank, reads []Read) {
	if len(reads) == 1 {
		reads[0].Err = f.Read(ctx, from, reads[0].Source, reads[0].Dst)
		return
	}
	if b, ok := f.(BatchReader); ok {
		b.ReadBatch(ctx, from, reads)
		return
	}
	var all sync.WaitGroup
	for i := range reads {
		all.Go(func() { reads[i].Err = f.Read(ctx, from, reads[i].Source, reads[i].Dst) })
	}
	all.Wait()
}
