package transfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/cascade/residency"
	"cascadekv/gpu/direct"
	"cascadekv/gpu/gio"
	"cascadekv/internal/fault"
	"cascadekv/internal/region"
)

// After is when a load has the disks read, or a store begins: once word Word of the region's ring, 1 to direct.Words, has reached a
// value. The zero value is at once, by way of memory of the store.
type After struct {
	Word  int
	Value uint32
}

const (
	// eventPatience bounds the wait of a job for its event, closePatience that for the disk when a region is given
	// back, and probePatience that for the disk once a ring has not answered.
	eventPatience = 60 * time.Second
	closePatience = 5 * time.Second
	probePatience = time.Second

	// holdShare is which part of the level on disks the blocks may be that all rings hold there at a time for loads, and ringShare those
	// of one ring: what is held can not leave.
	holdShare = 2
	ringShare = 4

	// Rings bound what their threads and their part of the disks cost: of one client, and of all.
	maxRings  = 16
	mostRings = 64
)

// ringPatience bounds the waits for an event, for the disk after it, for the disk when a region is given back, and for the disk to answer when a
// ring does not.
type ringPatience struct{ event, disk, close, probe time.Duration }

// Errors of rings.
var (
	errNoRing  = errors.New("AFTER is for a region with a ring (CASCADE.REGION RING)")
	errRings   = fmt.Errorf("rings are used up: a connection has at most %d, all have %d; detach some", maxRings, mostRings)
	errNoDisks = errors.New("this rank has no level on disks (nvme.paths), which rings read from")
)

// AttachRing makes a ring with so many bytes of memory, hands both over to the client that has the other end of a unix socket,
// and makes the memory the client's next region, whose number it returns. It takes both descriptors over, as Attach does; the
// ring ends with the region. write: it has room of its own on the disks, if there is some, and stores go there by it.
func (x *Client) AttachRing(socket, notify int, bytes int64, write bool) (number int64, err error) {
	switch {
	case x.pool.Rings == nil:
		err = errNoDisks
	case bytes < 1 || bytes%int64(os.Getpagesize()) != 0:
		err = fmt.Errorf("a ring of %d bytes: want whole pages of %d", bytes, os.Getpagesize())
	case x.rings() >= maxRings || !take(&x.pool.rings, 1, mostRings):
		err = errRings
	}
	if err != nil {
		CloseAll(socket, notify)
		return 0, err
	}
	own := region.Cost{Pinned: bytes, Mappings: 2, Address: bytes}
	cost := region.CostOf(bytes, x.pool.Budget.memory, direct.Descriptors+min(1, notify+1)).Plus(own)
	number, err = x.add(cost, socket, notify, func() (*Region, error) { return x.pool.attachRing(socket, notify, bytes, write) })
	if err != nil {
		x.pool.rings.Add(-1)
		return 0, err
	}
	r := x.regions[number]
	files := region.Cost{Descriptors: r.ring.Files()}
	if err := x.pool.Budget.Take(x.cost, files); err != nil {
		x.Remove(number)
		return 0, errors.Join(err, x.GiveBack(r))
	}
	r.cost, x.cost = r.cost.Plus(files), x.cost.Plus(files)
	return number, nil
}

// take adds n to what is counted, unless that were more than most.
func take(c *atomic.Int64, n, most int64) bool {
	if c.Add(n) <= most {
		return true
	}
	c.Add(-n)
	return false
}

// rings is how many regions of the client have one.
func (x *Client) rings() (n int) {
	for _, r := range x.regions {
		if r.ring != nil {
			n++
		}
	}
	return n
}

// attachRing is AttachRing, uncounted.
func (p *Pool) attachRing(socket, notify int, bytes int64, write bool) (r *Region, err error) {
	peer, err := connOf(socket)
	if err != nil {
		CloseAll(notify)
		return nil, err
	}
	ring, err := p.Rings(bytes, write)
	if err != nil {
		CloseAll(notify)
		return nil, errors.Join(err, peer.Close())
	}
	var data *os.File
	if err = ring.Send(peer); err == nil {
		data, err = ring.DataFile()
	}
	if err == nil {
		r, err = p.attachData(data, notify)
	} else {
		CloseAll(notify)
	}
	if err != nil {
		ctx, cancel := p.closing()
		defer cancel()
		return nil, errors.Join(err, ring.Close(ctx))
	}
	r.ring = ring
	log := p.log.With("ring", p.serial.Add(1))
	writes := ring.Writes()
	log.Info("a client has a ring", "bytes", bytes, "is_to_write", write, "writes", writes, "engine", ring.Engine(), "why_not_io_uring", ring.Fallback())
	if write && !writes {
		go tellWrites(ring, log)
	}
	return r, nil
}

// tellWrites says when a ring that had no room to write to has some.
func tellWrites(r *direct.Ring, log *slog.Logger) {
	defer fault.Guard()()
	select {
	case <-r.Writing():
		log.Info("a client's ring has room to write to by now", "writes", true)
	case <-r.Done():
	}
}

// attachData makes the memory of a ring a region.
func (p *Pool) attachData(data *os.File, notify int) (*Region, error) {
	fd, err := unix.FcntlInt(data.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	_ = data.Close() // memory
	if err != nil {
		CloseAll(notify)
		return nil, fmt.Errorf("keep the memory of a ring: %w", err)
	}
	return p.attach(fd, notify, 0)
}

// connOf takes a descriptor over that is to be a unix socket.
func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "ring")
	c, err := net.FileConn(f)
	_ = f.Close() // c has a duplicate
	if err != nil {
		return nil, fmt.Errorf("the descriptor that came along is no socket: %w", err)
	}
	if u, ok := c.(*net.UnixConn); ok {
		return u, nil
	}
	return nil, errors.Join(errors.New("the descriptor that came along is no unix socket"), c.Close())
}

// closeRing ends a ring, and calls gone once its memory is given back: later, where the disk does not answer.
func closeRing(ctx context.Context, r *direct.Ring, gone func()) error {
	err := r.Close(ctx)
	if err == nil {
		gone()
		return nil
	}
	go func() {
		<-r.Done()
		gone()
	}()
	return err
}

// closing is a context for the end of a ring.
func (p *Pool) closing() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), p.patience.close)
}

// HasRing reports whether a region of the client has a ring, which no other program can go on with. A nil client has none.
func (x *Client) HasRing() bool {
	if x == nil {
		return false
	}
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	return slices.ContainsFunc(x.open, func(r *Region) bool { return r.ring != nil })
}

// flight is what a ring moves: blocks of some keys. Those that it reads are held on the disk until that has ended.
type flight struct {
	batch *direct.Batch
	keys  []int
	views []*cascade.View   // of a load
	bytes int64             // of the blocks
	ended func(loaded bool) // of the level, once the event of a load has come

	counts  []*atomic.Int64 // in which bytes is counted, until the flight has ended or, of a store, its event has come
	counted bool            // of a store: in the budget of the level
}

// uncount takes a flight out of what counts it.
func (f *flight) uncount() {
	for _, c := range f.counts {
		c.Add(-f.bytes)
	}
	f.counts = nil
}

// begin has the ring read those blocks that it can, once their event has come, and returns the keys of those that are not on the disk alone,
// or all when as many batches wait as a ring has. What lies there, and not where a ring can read it or write it to, is missed.
func (t *Transfer) begin(keys []int) (rest []int) {
	if t.opt.After.Word == 0 || len(keys) == 0 {
		return keys
	}
	b := t.ring.Batch(gio.Read, t.opt.After.Word, t.opt.After.Value)
	if b == nil {
		return keys
	}
	f := &flight{batch: b, counts: []*atomic.Int64{&t.pool.held, &t.part.held}}
	capacity := int64(-1) // of the level
	for k, v := range cascade.PinDeep(t.pool.store, t.ns, t.names(keys)) {
		i := keys[k]
		if v != nil && capacity < 0 {
			capacity, _ = v.From().Occupancy()
		}
		switch {
		case v != nil && v.Size() == t.layout.Size(i) && t.hold(f, v, i, capacity):
			v.Keep()
			f.keys, f.views = append(f.keys, i), append(f.views, v)
		case v != nil:
			v.Release()
			t.missed = append(t.missed, i)
		default:
			rest = append(rest, i)
		}
	}
	if len(f.keys) == 0 {
		b.End()
		return rest
	}
	if err := b.Begin(); err != nil {
		t.pool.log.Warn("a ring takes no reads", "err", err)
		f.end()
		t.missed = append(t.missed, f.keys...)
		return rest
	}
	t.flights = append(t.flights, f)
	return rest
}

// hold adds a block to a flight, and to what is held on the disks of that capacity, unless that is too much or the ring can not read it.
func (t *Transfer) hold(f *flight, v *cascade.View, i int, capacity int64) bool {
	size := v.Size()
	if !take(&t.pool.held, size, capacity/holdShare) {
		return false
	}
	if take(&t.part.held, size, capacity/ringShare) {
		if f.batch.Add(v.Pin(), t.layout.Block(i)) {
			f.bytes += size
			return true
		}
		t.part.held.Add(-size)
	}
	t.pool.held.Add(-size)
	return false
}

// end gives back what a flight holds, whose batch is not under way.
func (f *flight) end() {
	f.uncount()
	f.batch.End()
	for _, v := range f.views {
		v.Release()
	}
}

// settleLocked has a job that has made all turns wait for its ring, and for no worker.
func (p *Pool) settleLocked(j *job) {
	p.mu.reading++
	j.of.running++
	go p.settle(j)
}

// settle ends what the ring moves for a job. What did not come, and what is to be stored, makes another turn.
func (p *Pool) settle(j *job) {
	defer fault.Guard()()
	j.settleAll(j.ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.reading--
	j.of.running--
	if len(j.missed) > 0 && j.ctx.Err() == nil {
		j.of.queue = slices.Insert(j.of.queue, 0, j)
		p.readyLocked(j.of)
		return
	}
	j.giveUp()
	p.finishLocked(j)
}

// settleAll waits for the event of the flights, and for their ends.
func (t *Transfer) settleAll(ctx context.Context) {
	came := t.pool.words.await(ctx, t.ring, t.opt.After, t.pool.patience.event)
	for _, f := range t.flights {
		switch f.ended = func(bool) {}; {
		case !came:
			f.batch.Cancel()
		case !t.store:
			f.ended = f.views[0].From().BeganLoad(f.bytes)
		default:
			t.pay(f)
		}
	}
	patience := ringPatience{disk: t.pool.patience.disk, probe: t.pool.patience.probe}
	for _, f := range t.flights {
		if !t.settleOne(ctx, f, patience) {
			patience.disk, patience.probe = noPatience, 0
		}
	}
	t.flights = nil
	t.release(ctx, came)
}

// settleOne settles the keys of a flight, and counts what is known of where they were read from: those that the ring did not move
// are counted when they are moved. False when it has not ended in time.
func (t *Transfer) settleOne(ctx context.Context, f *flight, patience ringPatience) (ended bool) {
	within, cancel := context.WithTimeout(context.Background(), patience.disk)
	defer cancel()
	err := f.await(within)
	f.ended(err == nil)
	var some *gio.IOError
	switch {
	case errors.Is(err, gio.ErrTimeout), errors.Is(err, gio.ErrGone): // a ring ends after its jobs, unless its engine fails or its client says that it has
		t.late(f, err, patience.probe)
		for _, i := range f.keys {
			t.status[i] = Stuck
		}
		go f.linger()
		return false
	case errors.Is(err, gio.ErrCancelled):
		t.unwanted(f)
		for _, i := range f.keys {
			if t.status[i] = NotMoved; ctx.Err() != nil {
				t.status[i] = Cancelled
			}
		}
	case t.store && ctx.Err() != nil:
		t.unwanted(f)
	case t.store && (err == nil || errors.As(err, &some)):
		t.place(within, f)
	case t.store: // its keys are held
		t.unwanted(f)
	case err == nil, errors.As(err, &some):
		good := make([]*cascade.View, 0, len(f.keys))
		for k, i := range f.keys {
			if !f.batch.Good(k) {
				t.missed = append(t.missed, i)
				continue
			}
			t.status[i] = Moved
			t.pool.loaded.add(f.views[k].Size())
			good = append(good, f.views[k])
		}
		cascade.CountGot(t.pool.store, t.ns, good)
	default:
		t.missed = append(t.missed, f.keys...)
	}
	f.end()
	return true
}

// await waits for the end of a flight whose event has come, until ctx ends. One whose device did not see that, since who raised the word can
// lower it, ends then as one that was cancelled: no disk is at fault.
func (f *flight) await(ctx context.Context) error {
	err := f.batch.Wait(ctx)
	if !errors.Is(err, gio.ErrTimeout) {
		return err
	}
	f.batch.Cancel()
	ctx, cancel := context.WithTimeout(context.Background(), noPatience)
	defer cancel()
	return f.batch.Wait(ctx)
}

// late counts a flight that has not ended, with the error of that. Who is at fault is found out by asking the disks, which are left alone if they do not answer either:
// a client can have its ring do anything. patience is 0 for those that follow such a flight.
func (t *Transfer) late(f *flight, err error, patience time.Duration) {
	f.batch.Late()
	if !t.store {
		cascade.CountGot(t.pool.store, t.ns, make([]*cascade.View, len(f.keys)))
		for range f.keys {
			t.lost(residency.StepCopy, "late")
		}
	}
	if patience == 0 {
		return
	}
	op := gio.Read
	if t.store {
		op = gio.Write
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if errors.Is(err, gio.ErrGone) || t.ring.Answers(ctx, op) == nil {
		t.pool.log.Warn("a ring has not moved its blocks in time, and the disks answer: its memory stays in use, and it moves no others until it has", "blocks", len(f.keys), "err", err)
		return
	}
	t.pool.log.Warn("the disks do not answer a ring: its memory stays in use, and they are left alone for some seconds", "blocks", len(f.keys))
	if t.store {
		cascade.Direct{Store: t.pool.store}.Pause()
	} else {
		f.views[0].From().NoReads.Begin()
	}
}

// unwanted counts a flight that was given up: its blocks were found, and are not wanted in the end, or are not written.
func (t *Transfer) unwanted(f *flight) {
	if !t.store {
		cascade.CountGot(t.pool.store, t.ns, f.views)
		return
	}
	for _, i := range f.keys {
		t.payBack(f, i)
	}
}

// linger keeps what a flight holds until it has ended, or all of its ring has.
func (f *flight) linger() {
	defer fault.Guard()()
	f.batch.Linger()
	f.end()
}
