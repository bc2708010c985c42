package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cascadekv/internal/trace"
)

// worker replays requests one after the other.
type worker struct {
	s           Session
	blockBytes  int
	blockTokens int
	keys        []string
	o           outcome
	req         *trace.Request
	aside       time.Duration // spent on payloads during the call at hand

	// The callbacks, made once so that a request makes none.
	visit func(i int, data []byte, tier string)
	fill  func(i int, dst []byte)
}

// work replays requests until there are no more.
func work(ctx context.Context, o Options, target Target, sum *totals, times *times, todo <-chan *job, free chan<- *job) (err error) {
	s, err := target.Session(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	w := &worker{s: s, blockBytes: o.BlockBytes, blockTokens: o.BlockTokens}
	w.visit, w.fill = w.verify, w.make
	for j := range todo {
		if ctx.Err() != nil {
			return nil
		}
		times.begin(j.at)
		if err := w.replay(ctx, &j.Request); err != nil {
			return err
		}
		w.o.reachable = j.reachable
		sum.add(&w.o)
		free <- j
	}
	return nil
}

// replay does for one request what an engine would.
func (w *worker) replay(ctx context.Context, req *trace.Request) error {
	w.req = req
	w.o.reset()
	w.keys = appendKeys(w.keys[:0], req.Hashes)
	w.o.blocks = int64(len(w.keys))
	w.o.tokens = int64(req.InputTokens)
	if len(w.keys) == 0 {
		return nil
	}
	start := time.Now()
	hits, err := w.s.Probe(ctx, w.keys)
	w.o.probed = max(1, time.Since(start))
	if err != nil {
		return err
	}
	if hits < 0 || hits > len(w.keys) {
		return fmt.Errorf("replay: a probe of %d blocks found %d", len(w.keys), hits)
	}
	served := 0
	if hits > 0 {
		if served, err = w.get(ctx, w.keys[:hits]); err != nil {
			return err
		}
	}
	for i := range served {
		w.o.hitTokens += int64(req.Tokens(i, w.blockTokens))
	}
	if served == len(w.keys) {
		return nil
	}
	return w.put(ctx, served)
}

func (w *worker) get(ctx context.Context, keys []string) (int, error) {
	w.aside = 0
	start := time.Now()
	served, err := w.s.GetBatch(ctx, keys, w.visit)
	w.o.got = max(1, time.Since(start)-w.aside)
	return served, err
}

func (w *worker) put(ctx context.Context, first int) error {
	w.aside = 0
	start := time.Now()
	stored, err := w.s.PutBatch(ctx, w.keys, first, w.fill)
	w.o.putting = max(1, time.Since(start)-w.aside)
	w.o.put = int64(stored)
	w.o.rejected = int64(len(w.keys) - first - stored)
	return err
}

// verify compares one hit with its payload. Bytes that are missing or too many
// are wrong.
func (w *worker) verify(i int, data []byte, tier string) {
	start := time.Now()
	w.o.hit(tier, len(data))
	w.o.wrong += int64(max(len(data)-w.blockBytes, w.blockBytes-len(data)))
	w.o.wrong += int64(trace.Verify(data[:min(len(data), w.blockBytes)], w.req.Hashes[i]))
	w.aside += time.Since(start)
}

// make writes one block's payload.
func (w *worker) make(i int, dst []byte) {
	start := time.Now()
	trace.Fill(dst, w.req.Hashes[i])
	w.aside += time.Since(start)
}
