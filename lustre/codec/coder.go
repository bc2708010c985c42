package codec

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"cascadekv/internal/cpus"
)

// Options of a Coder. The zero value is useful.
type Options struct {
	// Workers bounds the blocks that are encoded at once, and those that are
	// decoded, and so the memory of the Coder: 1 to 1024, default cpus.Count.
	Workers int
	// MinSaving is the least part of a block's bytes, in stored pages, that an
	// encoding must save: above 0, below 1. The default is 1/8. Tensors in bf16
	// save some 30 %, in fp16 some 13 %; less is not worth a decoding on every
	// read.
	MinSaving float64
	// AlignBytes is what stored payloads are padded to; the default of 4096 is
	// that of segments. Savings below that unit are none.
	AlignBytes int
}

func (o Options) withDefaults() Options {
	return Options{cmp.Or(o.Workers, cpus.Count()), cmp.Or(o.MinSaving, 1.0/8), cmp.Or(o.AlignBytes, 4096)}
}

// Coder encodes and decodes. All methods may be called by any number of
// goroutines; those beyond Workers wait, but reads never for writes.
type Coder struct {
	opt      Options
	encoders pool
	decoders pool
	memory   memory
	stats    counters
}

// New returns a Coder. Errors: ErrBadOption.
func New(o Options) (*Coder, error) {
	o = o.withDefaults()
	if o.Workers < 1 || o.Workers > 1024 || o.AlignBytes < 1 || !(o.MinSaving > 0 && o.MinSaving < 1) {
		return nil, fmt.Errorf("%w: %d workers (1 to 1024), saving of %v (above 0, below 1), pages of %d bytes (1 or more)",
			ErrBadOption, o.Workers, o.MinSaving, o.AlignBytes)
	}
	return &Coder{opt: o, encoders: newPool(o.Workers), decoders: newPool(o.Workers)}, nil
}

// pool lends a fixed number of workers; nil stands for one not made yet.
type pool chan *worker

func newPool(n int) pool {
	p := make(pool, n)
	for range n {
		p <- nil
	}
	return p
}

// borrow waits for a worker; it goes back by p <- w.
func (p pool) borrow() (*worker, error) {
	w := <-p
	if w != nil {
		return w, nil
	}
	w, err := newWorker()
	if err != nil {
		p <- nil
	}
	return w, err
}

// Room returns the longest encoding of a block of size bytes that Encode
// returns: the longest that saves enough pages. It is 0 for blocks that are
// too small to save any.
func (c *Coder) Room(size int) int {
	pages := (size + c.opt.AlignBytes - 1) / c.opt.AlignBytes
	saved := int(math.Ceil(c.opt.MinSaving * float64(size) / float64(c.opt.AlignBytes)))
	// An encoding is shorter than its block also where pages are small.
	return max(0, min((pages-saved)*c.opt.AlignBytes, size-1))
}

// Encoded is the outcome of Encode.
type Encoded struct {
	Codec Number
	Size  int // bytes of dst that hold the encoding; 0 with None
}

// Encode encodes src into dst with the codec that pays for blocks of its
// stream, or leaves it: then the codec is None, and src itself is the payload.
// dst should have Room(len(src)) bytes; less makes None more likely. dst and
// src must not overlap; both are the caller's again on return, and dst holds
// rubbish behind the encoding.
func (c *Coder) Encode(stream string, dst, src []byte) (Encoded, error) {
	room := min(len(dst), c.Room(len(src)))
	if room == 0 {
		c.stats.skip(len(src))
		return Encoded{}, nil
	}
	key := hashStream(stream)
	choice, sample := c.memory.recall(key)
	if !sample && choice.codec == None {
		c.stats.skip(len(src))
		return Encoded{}, nil
	}
	w, err := c.encoders.borrow()
	if err != nil {
		return Encoded{}, err
	}
	defer func() { c.encoders <- w }()
	if sample {
		c.stats.samples.Add(1)
		if choice, err = w.choose(src, room); err != nil {
			return Encoded{}, err
		}
	}
	n, err := 0, ErrNoGain
	if choice.codec != None {
		n, err = w.encode(choice.codec, choice.effort, dst[:room], src)
	}
	none := errors.Is(err, ErrNoGain)
	if err != nil && !none {
		return Encoded{}, err
	}
	failed := none && choice.codec != None
	switch {
	case sample:
		c.memory.decide(key, choice, !failed)
	case failed:
		c.memory.disappoint(key)
	}
	if failed {
		c.stats.failed.Add(1)
	}
	if none {
		c.stats.skip(len(src))
		return Encoded{}, nil
	}
	c.stats.encoded(choice.codec, len(src), n)
	return Encoded{Codec: choice.codec, Size: n}, nil
}

// EncodeAs encodes src into dst with a codec and an effort of the caller's
// choice and returns the length of the encoding, whatever it saves. dst and
// src must not overlap. Errors: ErrNoGain when the encoding does not fit into
// dst or is not shorter than src, ErrUnknown (also for None).
func (c *Coder) EncodeAs(n Number, effort Effort, dst, src []byte) (int, error) {
	w, err := c.encoders.borrow()
	if err != nil {
		return 0, err
	}
	defer func() { c.encoders <- w }()
	return w.encode(n, effort, dst, src)
}

// Decode fills dst, whose length is that of the block, from the encoding p.
// They must not overlap: see DecodeInPlace. After an error dst holds rubbish.
// Errors: ErrCorrupt, ErrUnknown (also for None, which needs no decoding).
func (c *Coder) Decode(n Number, dst, p []byte) error {
	return c.decode(n, dst, p, false)
}

// DecodeInPlace decodes the encoding in dst[at:at+size] into all of dst. So a
// payload can be read from a file straight into the memory of its block; near
// the end of dst is best, for the encoding is moved there first. Errors as of
// Decode, and ErrCorrupt for an encoding that does not lie within dst.
func (c *Coder) DecodeInPlace(n Number, dst []byte, at, size int) error {
	if at < 0 || size < 0 || at > len(dst) || size > len(dst)-at {
		return corrupt("%d bytes at %d of %d", size, at, len(dst))
	}
	end := dst[len(dst)-size:]
	copy(end, dst[at:at+size])
	return c.decode(n, dst, end, true)
}

// DecodeFrom decodes without memory for the block, for those who only look at
// it: read fills its argument with the next bytes of the encoding, of which
// there are stored, and take gets the size bytes of the block piece by piece,
// each valid until it returns. An error of read ends it and is returned; others
// are those of Decode, and then what take got so far is rubbish.
func (c *Coder) DecodeFrom(n Number, size, stored int, read func([]byte) error, take func([]byte)) error {
	return c.decodeWith(n, func(w *worker) error {
		if w.piece == nil {
			w.piece = make([]byte, maxPiece)
		}
		next := func(n int) ([]byte, error) { return w.hold[:n], read(w.hold[:n]) }
		return w.decode(n, size, stored, next, func(n int) []byte { return w.piece[:n] }, take)
	})
}

// decode fills dst from p, which is the end of dst when it is inPlace.
func (c *Coder) decode(n Number, dst, p []byte, inPlace bool) error {
	return c.decodeWith(n, func(w *worker) error {
		stored, rest := p, dst
		next := func(n int) (part []byte, err error) {
			if part, stored = stored[:n], stored[n:]; inPlace {
				part = w.hold[:copy(w.hold, part)]
			}
			return part, nil
		}
		room := func(n int) (piece []byte) {
			piece, rest = rest[:n], rest[n:]
			return piece
		}
		return w.decode(n, len(dst), len(p), next, room, func([]byte) {})
	})
}

func (c *Coder) decodeWith(n Number, with func(*worker) error) error {
	w, err := c.decoders.borrow()
	if err != nil {
		return err
	}
	defer func() { c.decoders <- w }()
	if err := with(w); err != nil {
		if errors.Is(err, ErrCorrupt) {
			c.stats.corrupt.Add(1)
		}
		return err
	}
	c.stats.decoded[n].Add(1)
	return nil
}

// Stats counts what a Coder did.
type Stats struct {
	Codecs  [codecs]CodecStats // by Number; None counts blocks stored as they are
	Samples uint64             // blocks sampled
	Failed  uint64             // blocks that did not keep their sample's promise
	Corrupt uint64             // encodings that could not be decoded
}

// CodecStats counts what happened with one codec.
type CodecStats struct {
	Blocks   uint64 // encoded by Encode
	BytesIn  uint64
	BytesOut uint64
	Decoded  uint64 // blocks decoded
}

// counters is Stats in the making.
type counters struct {
	blocks, in, out, decoded [codecs]atomic.Uint64
	samples, failed, corrupt atomic.Uint64
}

func (s *counters) encoded(n Number, in, out int) {
	s.blocks[n].Add(1)
	s.in[n].Add(uint64(in))
	s.out[n].Add(uint64(out))
}

func (s *counters) skip(size int) { s.encoded(None, size, size) }

// Stats returns the counts so far. They are taken one by one, so that blocks
// under way may be in some and not in others.
func (c *Coder) Stats() Stats {
	st := Stats{Samples: c.stats.samples.Load(), Failed: c.stats.failed.Load(), Corrupt: c.stats.corrupt.Load()}
	for n := range st.Codecs {
		st.Codecs[n] = CodecStats{
			Blocks: c.stats.blocks[n].Load(), BytesIn: c.stats.in[n].Load(),
			BytesOut: c.stats.out[n].Load(), Decoded: c.stats.decoded[n].Load(),
		}
	}
	return st
}
