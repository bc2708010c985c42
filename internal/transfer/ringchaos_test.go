package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/gpu/direct"
	"cascadekv/gpu/gio"
	"cascadekv/internal/region"
)

// chaosVersions is how many there are of each block.
const chaosVersions = 3

// chaos is a client with a ring that does anything at any time, beside others of the same keys.
type chaos struct {
	*ringRig
	hostile bool // it writes to all of its memory, and to the ring, whenever it likes
	rng     *rand.Rand
	jobs    map[int64][]int
	busy    map[int]bool // places of blocks in the memory that jobs use
	last    int64        // job
	word    uint32
}

// newChaos is one more client of a store.
func newChaos(r *ringRig, hostile bool, rng *rand.Rand) *chaos {
	c := &chaos{hostile: hostile, rng: rng, jobs: map[int64][]int{}, busy: map[int]bool{}}
	c.ringRig = &ringRig{Pool: r.Pool, t: r.t, disk: r.disk, disks: r.disks, store: r.store, x: r.NewClient()}
	c.attach(true)
	return c
}

// chaoticDisks are what becomes of I/Os: some fail, some come to less, some wait for longer than the rank does, and some until stall is closed.
type chaoticDisks struct {
	n     atomic.Uint64
	stall chan struct{}
}

func (d *chaoticDisks) fault(gio.IO) (f gio.Fault) {
	switch n := d.n.Add(1); {
	case n%41 == 0:
		f.Errno = unix.EIO
	case n%97 == 0:
		f.Short = 512
	case n%701 == 0:
		f.Until = d.stall
	case n%501 == 0:
		wait := make(chan struct{})
		time.AfterFunc(200*time.Millisecond, func() { close(wait) })
		f.Until = wait
	}
	return f
}

// TestRingChaos: whatever clients with rings and without, and disks, do at once: no key has bytes that were not put under it, no block is there whose bytes were not written,
// and of what has ended nothing is left.
func TestRingChaos(t *testing.T) {
	for name, hostile := range map[string]bool{"honest": false, "hostile": true} {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
			})
			disks := &chaoticDisks{stall: make(chan struct{})}
			r := newStoreRig(t, direct.Options{Fault: disks.fault})
			r.patience = ringPatience{time.Minute, 100 * time.Millisecond, time.Millisecond, time.Minute}
			clients := []*chaos{newChaos(r, hostile, rand.New(rand.NewPCG(seed, 0))), newChaos(r, hostile, rand.New(rand.NewPCG(seed, 1)))}
			stop := make(chan struct{})
			var others sync.WaitGroup
			for i := range uint64(2) {
				others.Go(func() { r.useKeys(stop, rand.New(rand.NewPCG(seed, i+2)), hostile) })
			}
			for step := range 2000 {
				if step == 1600 {
					close(disks.stall)
				}
				clients[step%2].step()
			}
			close(stop)
			others.Wait()
			r.wantNothingLeft(hostile, clients...)
		})
	}
}

// useKeys uses the same keys, as those without a ring do.
func (r *ringRig) useKeys(stop <-chan struct{}, rng *rand.Rand, hostile bool) {
	ctx := context.Background()
	for {
		select {
		case <-stop:
			return
		default:
		}
		r.late.Add(int64(time.Second)) // a level that is left alone is not for long
		switch i := rng.IntN(ringBlocks); rng.IntN(8) {
		case 0, 1, 2:
			_, _ = r.store.Put(ctx, cascade.Entry{Namespace: "ns", Key: newKey(i)}, newBytes(rng.IntN(chaosVersions), i), nil)
		case 3:
			r.store.Delete(ctx, "ns", newKey(i))
		case 4:
			if rng.IntN(20) == 0 {
				r.store.Clear(ctx, "ns", false)
			}
		default:
			r.look(i, hostile)
		}
	}
}

// look fails if a key has other bytes than were put under it.
func (r *ringRig) look(i int, hostile bool) {
	v, err := r.store.Get(context.Background(), "ns", newKey(i))
	if err != nil {
		return
	}
	defer v.Release()
	if !hostile && !isVersion(v.Bytes(), i) {
		r.t.Errorf("block %d has other bytes", i)
	}
}

// isVersion reports whether p is one of the versions of block i.
func isVersion(p []byte, i int) bool {
	for version := range chaosVersions {
		if bytes.Equal(p, newBytes(version, i)) {
			return true
		}
	}
	return false
}

// step does one thing.
func (c *chaos) step() {
	c.collect()
	switch c.rng.IntN(12) {
	case 0, 1, 2, 3:
		c.submit(true)
	case 4, 5:
		c.submit(false)
	case 6, 7:
		c.word++
		c.raise(1, c.word)
	case 8:
		c.x.Cancel(c.last - c.rng.Int64N(4))
	case 9:
		time.Sleep(time.Millisecond)
	case 10:
		if c.rng.IntN(40) == 0 {
			c.goes()
		}
	default:
		if c.hostile {
			c.mem[c.rng.IntN(len(c.mem))]++
		}
		if c.hostile && c.rng.IntN(8) == 0 {
			(*atomic.Uint32)(unsafe.Pointer(&c.words[4*c.rng.IntN(len(c.words)/4)])).Store(c.rng.Uint32N(64))
		}
	}
}

// submit has some blocks stored or loaded, each at the place that its number and the direction say.
func (c *chaos) submit(store bool) {
	var pairs []byte
	var keys []string
	var places []int
	for range 1 + c.rng.IntN(6) {
		i := c.rng.IntN(ringBlocks)
		place := i
		if !store {
			place += ringBlocks
		}
		if c.busy[place] {
			continue
		}
		if c.busy[place] = true; store {
			copy(c.mem[place*ringBlock:], newBytes(c.rng.IntN(chaosVersions), i))
		}
		pairs = binary.LittleEndian.AppendUint64(pairs, uint64(place*ringBlock))
		pairs = binary.LittleEndian.AppendUint64(pairs, ringBlock)
		keys, places = append(keys, newKey(i)), append(places, place)
	}
	if len(keys) == 0 {
		return
	}
	layout, err := region.ParseLayout(pairs, len(keys), c.at.Size())
	must(c.t, err)
	c.last++
	o := Options{Job: c.last, After: After{1, c.word + c.rng.Uint32N(3)}, Replace: store && c.rng.IntN(2) == 0, Chain: store && c.rng.IntN(2) == 0}
	tr, err := c.New(c.at, "ns", keys, layout, o, store)
	must(c.t, err)
	if bad := c.x.Submit(tr, c.at); bad != "" {
		c.t.Error(bad)
	}
	c.jobs[c.last] = places
}

// collect looks at what has ended. Places that a disk may still use are left alone.
func (c *chaos) collect() {
	for _, f := range c.x.Collect() {
		places := c.jobs[f.Number]
		delete(c.jobs, f.Number)
		if bytes.IndexByte(f.Status, Stuck) >= 0 {
			continue
		}
		for k, place := range places {
			if i := place - ringBlocks; i >= 0 && f.Status[k] == Moved && !c.hostile && !isVersion(c.mem[place*ringBlock:][:ringBlock], i) {
				c.t.Errorf("block %d was loaded with other bytes", i)
			}
			delete(c.busy, place)
		}
	}
}

// goes ends the client, with all that it has under way, and has another one come. A disk may be hanging.
func (c *chaos) goes() {
	if err := c.x.Close(); err != nil && !errors.Is(err, gio.ErrBusy) {
		c.t.Error(err)
	}
	clear(c.jobs)
	clear(c.busy)
	c.word = 0
	c.attach(c.rng.IntN(3) > 0)
}

// wantNothingLeft ends the clients, and fails unless all that is used is used by blocks, and all of these are whole.
func (r *ringRig) wantNothingLeft(hostile bool, clients ...*chaos) {
	r.patience.close = time.Minute
	must(r.t, r.x.Close())
	for _, c := range clients {
		must(r.t, c.x.Close())
	}
	for i := range ringBlocks {
		r.look(i, hostile)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		used, _ := r.Budget.Usage()
		u := r.disks.Usage()
		if u.Used == int64(u.Blocks)*ringBlock && used == (region.Cost{}) && r.Unfinished() == 0 && r.Regions() == 0 {
			break
		}
		if time.Now().After(end) {
			r.t.Fatalf("left: %+v, %+v, %d jobs, %d regions", u, used, r.Unfinished(), r.Regions())
		}
	}
	r.quiet()
	if h := r.disks.Stats().Health; !hostile && h.Reads.Corrupt != 0 {
		r.t.Errorf("%d blocks of other bytes than were registered", h.Reads.Corrupt)
	}
}
