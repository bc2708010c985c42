package tiertest

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// TestReference runs the suite against the simplest tier that can pass it, so
// that a tier which fails is at fault and not the suite.
func TestReference(t *testing.T) {
	for name, persistent := range map[string]bool{"volatile": false, "persistent": true} {
		t.Run(name, func(t *testing.T) {
			Run(t, Config{
				Persistent: persistent, Bounded: true,
				New: func(t *testing.T, dir string, capacity int64) tiers.Tier {
					r := &reference{capacity: capacity, disk: diskOf(dir), pins: map[*kept]int{}}
					r.idle = sync.NewCond(&r.mu)
					r.life = lives.Add(1) << 32
					if !persistent {
						r.disk = newDisk()
					}
					return r
				},
				Corrupt: func(t *testing.T, dir string, tr tiers.Tier, id block.ID) {
					tr.(*reference).disk.blocks[id].data[0] ^= 1
				},
			})
		})
	}
}

var disks sync.Map // directory → *disk

type disk struct {
	blocks map[block.ID]*kept
	names  map[nameKey]nameRecord
	mem    []byte // what Region shows
	stored uint64 // blocks so far

	layouts map[string]layoutRecord
}

type layoutRecord struct {
	seq    uint64
	layout block.Layout
}

type kept struct {
	info block.Info
	data []byte // in mem
	off  int64
	stay uint64
}

// newDisk maps its memory, so that only what is touched is paid for.
func newDisk() *disk {
	mem, err := unix.Mmap(-1, 0, 2*roomy, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		panic(err)
	}
	d := &disk{blocks: map[block.ID]*kept{}, names: map[nameKey]nameRecord{}, layouts: map[string]layoutRecord{}, mem: mem}
	runtime.SetFinalizer(d, func(d *disk) { unix.Munmap(d.mem) })
	return d
}

// fit returns the first gap of n bytes in mem.
func (r *reference) fit(n int64) int64 {
	var used []*kept
	for _, k := range r.disk.blocks {
		used = append(used, k)
	}
	for k := range r.pins {
		used = append(used, k)
	}
	slices.SortFunc(used, func(x, y *kept) int { return cmp.Compare(x.off, y.off) })
	var at int64
	for _, k := range used {
		if k.off-at >= n {
			break
		}
		at = max(at, k.off+int64(len(k.data)))
	}
	return at
}

func diskOf(dir string) *disk {
	d, ok := disks.Load(dir)
	if !ok {
		d, _ = disks.LoadOrStore(dir, newDisk())
	}
	return d.(*disk)
}

type reference struct {
	tiers.Private
	mu       sync.Mutex
	idle     *sync.Cond
	disk     *disk
	capacity int64
	reserved int64
	slots    int
	pins     map[*kept]int
	closed   bool
	life     uint64 // generations count from here
}

var lives atomic.Uint64

func (r *reference) Name() string { return "reference" }

func (r *reference) usageLocked() tiers.Usage {
	u := tiers.Usage{Capacity: r.capacity, Used: r.reserved, Blocks: len(r.disk.blocks)}
	for _, k := range r.disk.blocks {
		u.Used += k.info.Size
		u.Payload += k.info.Size
	}
	return u
}

func (r *reference) Stats() tiers.Stats { return tiers.Stats{} }

func (r *reference) Usage() tiers.Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.usageLocked()
}

func (r *reference) room(n int64) error {
	switch {
	case n > r.capacity:
		return fmt.Errorf("%d bytes: %w", n, tiers.ErrTooLarge)
	case r.usageLocked().Used+n > r.capacity:
		return fmt.Errorf("%d bytes: %w", n, tiers.ErrFull)
	}
	return nil
}

func (r *reference) Put(ctx context.Context, items ...tiers.Item) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return tiers.ErrClosed
	}
	var sum int64
	seen := map[block.ID]bool{}
	for _, it := range items {
		if r.disk.blocks[it.Info.ID] != nil || seen[it.Info.ID] {
			return tiers.ErrExists
		}
		seen[it.Info.ID] = true
		sum += it.Info.Size
	}
	if err := r.room(sum); err != nil {
		return err
	}
	for _, it := range items {
		r.storeLocked(it.Info, it.Data, it.Names)
	}
	return nil
}

func (r *reference) storeLocked(info block.Info, data []byte, names []block.Name) {
	d := r.disk
	d.stored++
	k := &kept{info: info, off: r.fit(info.Size), stay: d.stored}
	k.data = d.mem[k.off:][:info.Size:info.Size]
	copy(k.data, data)
	d.blocks[info.ID] = k
	for _, n := range names {
		r.disk.names[nameKey{n.Namespace, n.Key}] = nameRecord{id: info.ID, name: n}
	}
}

func (r *reference) get(id block.ID) (*kept, error) {
	if r.closed {
		return nil, tiers.ErrClosed
	}
	if k := r.disk.blocks[id]; k != nil {
		return k, nil
	}
	return nil, tiers.ErrNotFound
}

func (r *reference) Pin(id block.ID) (tiers.Pin, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, err := r.get(id)
	if err != nil {
		return nil, err
	}
	r.pins[k]++
	return &refPin{Host: k.data, r: r, k: k}, nil
}

func (r *reference) forgetLocked(id block.ID) {
	delete(r.disk.blocks, id)
	for k, n := range r.disk.names {
		if n.id == id {
			delete(r.disk.names, k)
		}
	}
}

func (r *reference) Evict(id block.ID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, err := r.get(id)
	if err == nil && r.pins[k] > 0 {
		err = tiers.ErrPinned
	}
	if err == nil {
		r.forgetLocked(id)
	}
	return err
}

func (r *reference) Link(id block.ID, n block.Name) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.get(id)
	if err == nil {
		r.disk.names[nameKey{n.Namespace, n.Key}] = nameRecord{id: id, name: n}
	}
	return err
}

func (r *reference) SetLayout(ns string, seq uint64, l block.Layout) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := l.Check(); err != nil {
		return err
	}
	if r.disk.layouts[ns].seq < seq {
		r.disk.layouts[ns] = layoutRecord{seq, l}
	}
	return nil
}

func (r *reference) Layout(ns string) (uint64, block.Layout) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.disk.layouts[ns].seq, r.disk.layouts[ns].layout
}

func (r *reference) Unlink(_ block.ID, n block.Name) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return tiers.ErrClosed
	}
	k := nameKey{n.Namespace, n.Key}
	if r.disk.names[k].name.Seq <= n.Seq {
		delete(r.disk.names, k)
	}
	return nil
}

func (r *reference) Recover(fn func(tiers.Entry) error) error {
	byBlock := map[block.ID][]block.Name{}
	for _, n := range r.disk.names {
		byBlock[n.id] = append(byBlock[n.id], n.name)
	}
	for id, k := range r.disk.blocks {
		if err := fn(tiers.Entry{Info: k.info, Names: byBlock[id]}); err != nil {
			return err
		}
	}
	return nil
}

func (r *reference) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for len(r.pins)+r.slots > 0 {
		r.idle.Wait()
	}
	return nil
}

func (r *reference) Rename(old, new block.ID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, err := r.get(old)
	if err != nil {
		return err
	}
	if r.disk.blocks[new] != nil {
		return tiers.ErrExists
	}
	delete(r.disk.blocks, old)
	k.info.ID = new
	r.disk.blocks[new] = k
	for key, n := range r.disk.names {
		if n.id == old {
			n.id = new
			r.disk.names[key] = n
		}
	}
	return nil
}

func (r *reference) Region() []byte { return r.disk.mem }

func (r *reference) Place(id block.ID) (tiers.Place, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, err := r.get(id)
	if err != nil {
		return tiers.Place{}, err
	}
	return tiers.Place{Offset: k.off, Generation: r.life + k.stay}, nil
}

func (r *reference) PinPlace(at tiers.Place, length int64) (tiers.Pin, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, tiers.ErrClosed
	}
	for _, k := range r.disk.blocks {
		if at == (tiers.Place{Offset: k.off, Generation: r.life + k.stay}) && length >= 0 && length <= k.info.Size {
			r.pins[k]++
			return &refPin{Host: k.data, r: r, k: k}, nil
		}
	}
	return nil, tiers.ErrNotFound
}

type refPin struct {
	tiers.Host
	r    *reference
	k    *kept
	once sync.Once
}

func (p *refPin) Info() block.Info {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return p.k.info
}

func (p *refPin) Offset() int64 { return p.k.off }

func (p *refPin) ZeroCopy() bool { return false }

func (p *refPin) ReadInto(_ context.Context, dst []byte) error {
	copy(dst, p.k.data)
	if block.CRC(dst) == p.Info().CRC {
		return nil
	}
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.r.forgetLocked(p.k.info.ID)
	return tiers.ErrCorrupt
}

func (p *refPin) Release() {
	p.once.Do(func() {
		p.r.mu.Lock()
		defer p.r.mu.Unlock()
		if p.r.pins[p.k]--; p.r.pins[p.k] == 0 {
			delete(p.r.pins, p.k)
		}
		p.r.idle.Broadcast()
	})
}

func (r *reference) Reserve(size int64) (tiers.Slot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, tiers.ErrClosed
	}
	if err := r.room(size); err != nil {
		return nil, err
	}
	r.reserved += size
	r.slots++
	return &refSlot{Host: make([]byte, size), r: r}, nil
}

type refSlot struct {
	tiers.Host
	r    *reference
	done bool
}

func (s *refSlot) Offset() int64 { return 0 }

func (s *refSlot) end(publish func() error) error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.done {
		return nil
	}
	s.done = true
	s.r.slots--
	s.r.reserved -= int64(len(s.Host))
	s.r.idle.Broadcast()
	return publish()
}

func (s *refSlot) Commit(info block.Info, names []block.Name) error {
	return s.end(func() error {
		if s.r.disk.blocks[info.ID] != nil {
			return tiers.ErrExists
		}
		s.r.storeLocked(info, s.Host, names)
		return nil
	})
}

func (s *refSlot) Abort() { s.end(func() error { return nil }) }
