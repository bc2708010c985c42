package payload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/internal/cpus"
	"cascadekv/internal/fault"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/format"
)

// Encode makes payloads smaller where that pays. It reads Data until it
// returns. The payloads are valid until free is called, which must be.
func Encode(ctx context.Context, coder *codec.Coder, all []format.Block) (free func(), err error) {
	free = func() {}
	rooms, need := make([]int64, len(all)), int64(0) // where each may lie
	for i, p := range all {
		rooms[i] = need
		need += format.Align(int64(coder.Room(len(p.Bytes))))
	}
	if need == 0 {
		return free, nil
	}
	memory, err := arena.MapAnonymous(need) // of which untouched pages cost nothing
	if err != nil {
		return free, nil // stored as they are, they need none
	}
	var workers sync.WaitGroup
	var next atomic.Int64
	for range min(len(all), cpus.Count()) {
		workers.Go(func() {
			defer fault.Guard()()
			for i := next.Add(1) - 1; i < int64(len(all)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				encodeOne(coder, &all[i], memory.Bytes()[rooms[i]:])
			}
		})
	}
	workers.Wait()
	return func() { _ = memory.Close() }, ctx.Err() // memory that stays mapped is all that an error means
}

// encodeOne encodes one block into room, or leaves it.
func encodeOne(coder *codec.Coder, p *format.Block, room []byte) {
	room = room[:min(len(room), coder.Room(len(p.Bytes)))]
	stream := ""
	if len(p.Names) > 0 {
		stream = p.Names[0].Namespace
	}
	e, err := coder.Encode(stream, room, p.Bytes)
	if err != nil || e.Codec == codec.None {
		return
	}
	p.Bytes = room[:e.Size]
	p.As = format.Payload{Size: int64(e.Size), CRC: block.CRC(p.Bytes), Codec: e.Codec}
}

// Decode makes dst the block whose payload lies in it from at on. why is what
// is wrong with the bytes, err that they could not be decoded for another
// reason; both are empty when dst is right.
func Decode(coder *codec.Coder, info block.Info, as format.Payload, dst []byte, at int) (why string, err error) {
	payload := dst[at:][:as.Size]
	if why = as.Check(payload); why != "" || as.Codec == codec.None {
		return why, nil
	}
	err = coder.DecodeInPlace(as.Codec, dst, at, len(payload))
	switch {
	case errors.Is(err, codec.ErrCorrupt), errors.Is(err, codec.ErrUnknown):
		return err.Error(), nil
	case err != nil:
		return "", fmt.Errorf("decode with %v: %w", as.Codec, err)
	}
	return format.Plain(info).Check(dst), nil
}
