package transfer

import (
	"context"
	"errors"
	"slices"

	"cascadekv/internal/region"
)

// Client is the regions and jobs of one client. regions, last and cost belong to
// its goroutine, as do the methods but Ended's channel; the rest is guarded by the
// pool's mutex.
type Client struct {
	pool    *Pool
	regions map[int64]*Region
	last    int64       // number of a region
	cost    region.Cost // of the regions

	jobs    map[int64]*job // that Collect has not returned
	queue   []*job         // wait for a turn
	done    []*job         // wait for Collect
	running int
	bytes   int           // of the commands in jobs
	open    []*Region     // whose eventfds count finished jobs
	ended   chan struct{} // capacity 1: a job has finished
}

// NewClient returns a client without regions, for the caller to close.
func (p *Pool) NewClient() *Client {
	return &Client{pool: p, regions: map[int64]*Region{}, jobs: map[int64]*job{}, ended: make(chan struct{}, 1)}
}

// Region returns a region by its number, nil for none.
func (x *Client) Region(number int64) *Region { return x.regions[number] }

func (x *Client) put(number int64, r *Region) {
	x.regions[number] = r
	x.cost = x.cost.Plus(r.cost)
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	x.open = append(x.open, r)
	x.pool.regions.Add(1)
}

// Remove takes a region away from commands. It is in use until InUse is false, and
// then for GiveBack.
func (x *Client) Remove(number int64) { delete(x.regions, number) }

// InUse reports whether a job that is not finished uses a region.
func (x *Client) InUse(r *Region) bool {
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	return r.users > 0
}

// GiveBack ends a region that no job uses.
func (x *Client) GiveBack(r *Region) error {
	ctx, cancel := x.pool.closing()
	defer cancel()
	return x.giveBack(ctx, r)
}

// giveBack is GiveBack; a ring is waited for until ctx ends.
func (x *Client) giveBack(ctx context.Context, r *Region) error {
	x.pool.mu.Lock()
	x.open = slices.DeleteFunc(x.open, func(o *Region) bool { return o == r })
	x.pool.mu.Unlock()
	CloseAll(r.notify, r.fd)
	x.cost = x.cost.Minus(r.cost)
	defer x.pool.regions.Add(-1)
	gone := func() { x.pool.Budget.Give(r.cost) }
	if r.ring != nil {
		return errors.Join(r.Close(), closeRing(ctx, r.ring, func() { gone(); x.pool.rings.Add(-1) }))
	}
	defer gone()
	return r.Close() // of a large one the kernel has much to undo
}

// job is a transfer that nobody waits for on the socket.
type job struct {
	*Transfer
	number int64
	of     *Client
	at     *Region
	bytes  int
	ctx    context.Context
	cancel context.CancelFunc
	over   bool
}

func newJob(t *Transfer, number int64, of *Client, at *Region) *job {
	j := &job{Transfer: t, number: number, of: of, at: at, bytes: t.cost()}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j
}

// Submit queues a transfer into or out of a region of the client as the job that
// its options name. bad is the text of an error reply, "" for none.
func (x *Client) Submit(t *Transfer, at *Region) (bad string) {
	j := newJob(t, t.opt.Job, x, at)
	if bad = x.pool.submit(j); bad != "" {
		j.cancel()
	}
	return bad
}

// Cancel ends a job early; false when there is no such unfinished job.
func (x *Client) Cancel(number int64) bool {
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	j := x.jobs[number]
	if j == nil || j.over {
		return false
	}
	x.pool.stopLocked(j)
	return true
}

// CancelAll ends every job early.
func (x *Client) CancelAll() {
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	for _, j := range x.jobs {
		if !j.over {
			x.pool.stopLocked(j)
		}
	}
}

// Ended returns a channel to which is sent when a job has finished.
func (x *Client) Ended() <-chan struct{} { return x.ended }

// CanCollect reports whether Collect returns something, or never will: there are no
// jobs.
func (x *Client) CanCollect() bool {
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	return len(x.done) > 0 || len(x.jobs) == 0
}

// Finished is a job that has ended.
type Finished struct {
	Number int64
	Status []byte // of each key
}

// Collect returns the finished jobs, each of them once.
func (x *Client) Collect() []Finished { return x.collect(false) }

// collect is Collect, for a client that may have gone.
func (x *Client) collect(gone bool) []Finished {
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	done := make([]Finished, len(x.done))
	for i, j := range x.done {
		done[i] = Finished{j.number, j.status}
		j.Account(gone)
		x.pool.removeLocked(j)
	}
	x.done = nil
	return done
}

// Close cancels the client's jobs, waits until none of them touches a region, and
// gives the regions back.
func (x *Client) Close() (err error) {
	x.CancelAll()
	for !x.idle() {
		<-x.ended
	}
	x.collect(true)                 // nobody else will
	ctx, cancel := x.pool.closing() // of all rings together
	defer cancel()
	for _, r := range x.regions {
		err = errors.Join(err, x.giveBack(ctx, r))
	}
	clear(x.regions)
	return err
}

func (x *Client) idle() bool {
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	return len(x.queue) == 0 && x.running == 0
}
