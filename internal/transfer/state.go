package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"cascadekv/internal/handover"
	"cascadekv/internal/region"
)

// Save adds the regions and jobs to what another program gets, but for those with rings, which it can not have. No job is in a turn,
// and no ring reads.
func (x *Client) Save(to *handover.Conn) {
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	to.LastRegion = x.last
	number := map[*Region]int64{}
	for n, r := range x.regions {
		if r.ring != nil {
			continue
		}
		number[r] = n
		to.Regions = append(to.Regions, handover.Region{Number: n, FD: int32(r.fd), Notify: int32(r.notify), Size: r.Size()})
	}
	for _, j := range x.done {
		to.Jobs = append(to.Jobs, handover.Job{Number: j.number, Status: j.status, Over: true})
	}
	for _, j := range x.queue {
		if j.at.ring != nil {
			to.Jobs = append(to.Jobs, handover.Job{Number: j.number, Status: j.givenUp(), Over: true}) // it goes on here if the other program does not
			continue
		}
		to.Jobs = append(to.Jobs, j.state(number[j.at]))
	}
}

// state is a job that has more turns to make.
func (j *job) state(region int64) handover.Job {
	o := handover.Job{
		Number: j.number, Status: j.status, Region: region, Next: uint32(j.next), Namespace: j.ns, Parent: j.opt.Parent,
		Keys: j.keys, ExtentsOfBlock: uint32(len(j.layout.Block(0))),
	}
	for flag, is := range map[handover.JobFlags]bool{
		handover.Store: j.store, handover.Chain: j.opt.Chain, handover.Prefix: j.opt.Prefix, handover.Replace: j.opt.Replace, handover.Generated: j.opt.Generated,
	} {
		if is {
			o.Flags |= flag
		}
	}
	if !j.opt.Expires.IsZero() {
		o.Expires = j.opt.Expires.UnixNano()
	}
	for i := range j.keys {
		for _, e := range j.layout.Block(i) {
			o.Extents = append(o.Extents, e.Offset, e.Length)
		}
	}
	return o
}

// Restore takes over the regions and jobs that another program saved: it maps the
// regions again and goes on with the jobs.
func (x *Client) Restore(from *handover.Conn) error {
	x.last = from.LastRegion
	var failed error
	for _, r := range from.Regions {
		at, err := x.pool.attach(int(r.FD), int(r.Notify), r.Size)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		at.cost = region.CostOf(at.Size(), x.pool.Budget.memory, 1+min(1, at.notify+1))
		x.pool.Budget.Force(at.cost)
		x.put(r.Number, at)
	}
	for i := range from.Jobs {
		if failed == nil {
			failed = x.restoreJob(&from.Jobs[i])
		}
	}
	return failed
}

var errJob = errors.New("a job that was handed over can not go on")

// restoreJob goes on with a job, or keeps what Collect returns of it.
func (x *Client) restoreJob(h *handover.Job) error {
	t := &Transfer{pool: x.pool, status: h.Status}
	if h.Over {
		t.store = true // if it was a load, the other program has counted what it lost
		j := newJob(t, h.Number, x, nil)
		j.over = true
		j.cancel()
		x.pool.addFinished(j)
		x.done = append(x.done, j)
		return nil
	}
	at := x.regions[h.Region]
	if at == nil {
		return fmt.Errorf("%w: there is no region %d", errJob, h.Region)
	}
	var extents []byte
	for _, n := range h.Extents {
		extents = binary.LittleEndian.AppendUint64(extents, uint64(n))
	}
	layout, err := region.ParseLayout(extents, len(h.Keys), at.Size())
	if err != nil {
		return fmt.Errorf("%w: %w", errJob, err)
	}
	t.region, t.ns, t.keys, t.layout, t.next, t.store = at.Region, h.Namespace, h.Keys, layout, int(h.Next), h.Flags&handover.Store != 0
	t.opt = Options{
		Parent: h.Parent, Job: h.Number,
		Chain: h.Flags&handover.Chain != 0, Prefix: h.Flags&handover.Prefix != 0, Replace: h.Flags&handover.Replace != 0, Generated: h.Flags&handover.Generated != 0,
	}
	if h.Expires != 0 {
		t.opt.Expires = time.Unix(0, h.Expires)
	}
	if bad := x.pool.submit(newJob(t, h.Number, x, at)); bad != "" {
		return fmt.Errorf("%w: %s", errJob, bad)
	}
	return nil
}
