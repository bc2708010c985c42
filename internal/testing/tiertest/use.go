package tiertest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// worker does random operations on a shared set of blocks and checks every
// byte it reads. It ends after rounds operations or at the first ErrClosed.
func worker(t *testing.T, tr tiers.Tier, items []tiers.Item, seed uint64, rounds int, done *atomic.Int64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	dst := make([]byte, 64<<10)
	for i := 0; i < rounds || rounds == 0; i++ {
		it := items[rng.IntN(len(items))]
		err := step(t, tr, it, rng.IntN(8), dst[:it.Info.Size])
		done.Add(1)
		if errors.Is(err, tiers.ErrClosed) {
			return
		}
		if err != nil {
			t.Errorf("operation on %v: %v", it.Info.ID, err)
			return
		}
	}
}

// step does one operation and returns only errors that contradict the
// interface, or ErrClosed.
func step(t *testing.T, tr tiers.Tier, it tiers.Item, op int, dst []byte) error {
	var err error
	switch op {
	case 0, 1:
		err = tr.Put(t.Context(), it)
	case 2:
		err = tr.Evict(it.Info.ID)
	case 3:
		err = tr.Link(it.Info.ID, block.Name{Namespace: "ns", Key: it.Info.ID.String(), Seq: 1})
	case 4:
		if u := tr.Usage(); u.Blocks < 0 || u.Payload < 0 || u.Used < 0 {
			t.Errorf("usage = %+v", u)
		}
	default:
		var p tiers.Pin
		if p, err = tr.Pin(it.Info.ID); err != nil {
			break
		}
		defer p.Release()
		if err = p.ReadInto(t.Context(), dst); err != nil {
			return err
		}
		if b := p.Bytes(); !bytes.Equal(dst, it.Data) || b != nil && !bytes.Equal(b, it.Data) {
			t.Errorf("wrong bytes of %v", it.Info.ID)
		}
	}
	for _, ok := range []error{tiers.ErrNotFound, tiers.ErrExists, tiers.ErrPinned, tiers.ErrFull} {
		if errors.Is(err, ok) {
			return nil
		}
	}
	return err
}

func someItems(n int) []tiers.Item {
	items := make([]tiers.Item, n)
	for i := range items {
		items[i] = item(uint64(i), int64(i*i*61)%(64<<10))
	}
	return items
}

func (c Config) concurrent(t *testing.T) {
	tr := c.fresh(t, roomy)
	items := someItems(32)
	var wg sync.WaitGroup
	var done atomic.Int64
	for w := range 8 {
		wg.Go(func() { worker(t, tr.Tier, items, uint64(w), 200, &done) })
	}
	wg.Wait()
	u := tr.Usage()
	var left int
	for _, it := range items {
		if p, err := tr.Pin(it.Info.ID); err == nil {
			samePin(t, p, it)
			p.Release()
			left++
		}
	}
	if u.Blocks != left {
		t.Errorf("usage says %d blocks, %d can be read", u.Blocks, left)
	}
}

// untilClosed waits until the tier refuses pins because it is closing.
func untilClosed(t *testing.T, tr tiers.Tier, id block.ID) {
	t.Helper()
	for {
		p, err := tr.Pin(id)
		if errors.Is(err, tiers.ErrClosed) {
			return
		}
		if err != nil {
			t.Fatalf("Pin while Close begins: %v", err)
		}
		p.Release()
		time.Sleep(100 * time.Microsecond)
	}
}

// closing tries that Close waits for pins, whose bytes stay readable, and that
// everything is refused from its start on.
func (c Config) closing(t *testing.T) {
	tr := c.fresh(t, roomy)
	it, other := item(1, 42<<10), item(2, 100)
	put(t, tr, it, other)
	p, err := tr.Pin(it.Info.ID)
	if err != nil {
		t.Fatalf("Pin: %v", err)
	}
	defer p.Release()
	var released atomic.Bool
	closed := make(chan error, 1)
	go func() {
		err := tr.Close()
		if !released.Load() {
			err = errors.Join(err, errors.New("returned while a pin was held"))
		}
		closed <- err
	}()
	untilClosed(t, tr, other.Info.ID)
	samePin(t, p, it)
	released.Store(true)
	p.Release()
	if err := <-closed; err != nil {
		t.Fatalf("Close: %v", err)
	}
	c.refused(t, tr, it)
}

// refused checks that every method of a closed tier says so.
func (c Config) refused(t *testing.T, tr tiers.Tier, it tiers.Item) {
	t.Helper()
	_, pinErr := tr.Pin(it.Info.ID)
	name := block.Name{Namespace: "ns", Key: "k", Seq: 1}
	for what, err := range map[string]error{
		"Put":   tr.Put(t.Context(), item(77, 10)),
		"Pin":   pinErr,
		"Evict": tr.Evict(it.Info.ID),
	} {
		wantErr(t, what+" after Close", err, tiers.ErrClosed)
	}
	if c.Persistent {
		wantErr(t, "Link after Close", tr.Link(it.Info.ID, name), tiers.ErrClosed)
		wantErr(t, "Unlink after Close", tr.Unlink(it.Info.ID, name), tiers.ErrClosed)
	}
	if m, ok := tr.(tiers.Memory); ok {
		_, err := m.Reserve(10)
		wantErr(t, "Reserve after Close", err, tiers.ErrClosed)
		_, err = m.Place(it.Info.ID)
		wantErr(t, "Place after Close", err, tiers.ErrClosed)
		_, err = m.PinPlace(tiers.Place{}, 0)
		wantErr(t, "PinPlace after Close", err, tiers.ErrClosed)
		wantErr(t, "Rename after Close", m.Rename(it.Info.ID, item(78, 1).Info.ID), tiers.ErrClosed)
	}
	tr.Usage()
	if err := tr.Close(); err != nil && !errors.Is(err, tiers.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

func (c Config) closeDuringUse(t *testing.T) {
	tr := c.fresh(t, roomy)
	items := someItems(16)
	var wg sync.WaitGroup
	var done atomic.Int64
	for w := range 6 {
		wg.Go(func() { worker(t, tr.Tier, items, uint64(w), 0, &done) })
	}
	for done.Load() < 200 {
		time.Sleep(100 * time.Microsecond)
	}
	if err := tr.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	wg.Wait()
	c.refused(t, tr.Tier, items[0])
	if !c.Persistent {
		return
	}
	again := c.open(t, tr.dir, roomy)
	defer again.Close()
	known := map[block.ID]tiers.Item{}
	for _, it := range items {
		known[it.Info.ID] = it
	}
	for id := range again.blocks {
		readBack(t, again, known[id])
	}
}
