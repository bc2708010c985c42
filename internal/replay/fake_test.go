package replay

import (
	"context"
	"errors"
	"slices"
	"sync"

	"cascadekv/internal/trace"
)

// fake is a target of two tiers in memory: what is put lies in "fast", which
// holds the most recent blocks up to room; older ones are in "slow".
type fake struct {
	policy    string
	blockSize int
	room      int // blocks of fast; 0: no limit
	limit     int // blocks altogether; 0: no limit

	mu     sync.Mutex
	blocks map[string][]byte
	recent []string // keys in fast, oldest first

	damage func(key string, data []byte) []byte // what a get serves
	fail   error                                // of every put
	drop   string                               // a key that probes find and gets miss
	closed int
	open   int // sessions
}

func newFake(blockSize, room int) *fake {
	return &fake{policy: "fake", blockSize: blockSize, room: room, blocks: map[string][]byte{}}
}

func (f *fake) Session(context.Context) (Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open++
	return &fakeSession{f}, nil
}

func (f *fake) Stats(context.Context) (TargetStats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := int64(len(f.blocks)) * int64(f.blockSize)
	return TargetStats{Policy: f.policy, Tiers: []string{"fast", "slow"}, CapacityBytes: int64(f.room) * int64(f.blockSize),
		BytesReferenced: 2 * n, BytesStored: n}, nil
}

func (f *fake) Close(ctx context.Context) error {
	f.closed++
	if f.open != 0 {
		return errors.New("closed before its sessions")
	}
	return ctx.Err()
}

type fakeSession struct{ f *fake }

func (s *fakeSession) Probe(_ context.Context, keys []string) (int, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	for i, k := range keys {
		if _, ok := s.f.blocks[k]; !ok {
			return i, nil
		}
	}
	return len(keys), nil
}

func (s *fakeSession) GetBatch(_ context.Context, keys []string, visit func(int, []byte, string)) (int, error) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, k := range keys {
		data, ok := f.blocks[k]
		if !ok || k == f.drop {
			return i, nil
		}
		if f.damage != nil {
			data = f.damage(k, slices.Clone(data))
		}
		tier := "slow"
		if slices.Contains(f.recent, k) {
			tier = "fast"
		}
		visit(i, data, tier)
	}
	for _, k := range keys {
		f.touch(k)
	}
	return len(keys), nil
}

func (s *fakeSession) PutBatch(_ context.Context, keys []string, first int, fill func(int, []byte)) (int, error) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return 0, f.fail
	}
	for i := first; i < len(keys); i++ {
		if f.limit > 0 && len(f.blocks) == f.limit {
			return i - first, nil
		}
		data := make([]byte, f.blockSize)
		fill(i, data)
		f.blocks[keys[i]] = data
		f.touch(keys[i])
	}
	return len(keys) - first, nil
}

func (f *fake) touch(k string) {
	if i := slices.Index(f.recent, k); i >= 0 {
		f.recent = slices.Delete(f.recent, i, i+1)
	}
	if f.recent = append(f.recent, k); f.room > 0 && len(f.recent) > f.room {
		f.recent = f.recent[1:]
	}
}

func (s *fakeSession) Close() error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.open--
	return nil
}

// list is a trace in memory.
type list struct {
	left   []trace.Request
	end    error
	closed *int
}

func (l *list) Next(req *trace.Request) error {
	if len(l.left) == 0 {
		return l.end
	}
	h := append(req.Hashes[:0], l.left[0].Hashes...)
	*req = l.left[0]
	req.Hashes, l.left = h, l.left[1:]
	return nil
}

func (l *list) Close() error {
	*l.closed++
	return nil
}
