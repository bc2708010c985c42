package server

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/internal/transfer"
)

// queue submits a job.
func (e *engine) queue(job int, args ...string) {
	e.t.Helper()
	keys := slices.Index(args, "KEYS")
	rep, err := e.Do(slices.Insert(args, keys, "JOB", strconv.Itoa(job))...)
	if err != nil || rep.Text() != "QUEUED" {
		e.t.Fatalf("job %d: %+v, %v", job, rep, err)
	}
}

// told asks DONE until so many jobs are told, and returns their statuses.
func (e *engine) told(jobs int) map[int64]string {
	e.t.Helper()
	all := map[int64]string{}
	for len(all) < jobs {
		rep, err := e.Do("CASCADE.DONE", "5000")
		if err != nil || len(rep.Elems) == 0 {
			e.t.Fatalf("DONE: %+v, %v, after %d jobs of %d", rep, err, len(all), jobs)
		}
		for _, j := range rep.Elems {
			if _, twice := all[j.Elems[0].Int]; twice {
				e.t.Errorf("job %d is told twice", j.Elems[0].Int)
			}
			all[j.Elems[0].Int] = digits(j.Elems[1].Str)
		}
	}
	return all
}

func TestJobsAreToldOnce(t *testing.T) {
	r := newRig(t, 64<<20)
	e := r.engine(1 << 20)
	copy(e.mem, randomBytes(1, len(e.mem)))
	n := e.attach()
	for round := range 3 {
		for j := range 50 {
			e.queue(j, "CASCADE.STORE", n, "ns", at(uint64(j)*1000, 500, uint64(j)*1000+500, 500), "KEYS", fmt.Sprint(round, "a", j), fmt.Sprint(round, "b", j))
		}
		for j, s := range e.told(50) {
			if s != "11" {
				t.Errorf("job %d: %s", j, s)
			}
		}
	}
	if rep, err := e.Do("CASCADE.DONE"); err != nil || len(rep.Elems) != 0 {
		t.Errorf("DONE: %+v, %v", rep, err)
	}
	if rep, err := e.Do("CASCADE.CANCEL", "3"); err != nil || rep.Int != 0 {
		t.Errorf("CANCEL of what is told: %+v, %v", rep, err)
	}
	for _, args := range [][]string{{"CASCADE.DONE", "x"}, {"CASCADE.DONE", "-1"}, {"CASCADE.CANCEL", "x"}} {
		if _, err := e.Do(args...); code(err) != "ERR" {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// hanging queues so many LOADs, of one key each, that hang in the cold tier.
func (e *engine) hanging(n string, size uint64, jobs int) {
	e.t.Helper()
	for j := range jobs {
		e.queue(j, "CASCADE.LOAD", n, "redis/0", at(uint64(j)*size, size), "KEYS", fmt.Sprint("k", j))
	}
}

func TestDoneWaitsForItsOwnConnectionOnly(t *testing.T) {
	r, cold := newColdRig(t, 4, 5000)
	open := cold.shut()
	defer open()
	e, other := r.engine(4*5000), r.client("unix")
	n := e.attach()
	e.hanging(n, 5000, 1)
	if rep, err := e.Do("CASCADE.DONE", "1"); err != nil || len(rep.Elems) != 0 {
		t.Errorf("DONE while it hangs: %+v, %v", rep, err)
	}
	e.Send("CASCADE.DONE", "5000")
	if err := e.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Do("PING"); err != nil {
		t.Error(err)
	}
	open()
	rep, err := e.Receive()
	if err != nil || len(rep.Elems) != 1 || digits(rep.Elems[0].Elems[1].Str) != "1" {
		t.Fatalf("DONE: %+v, %v", rep, err)
	}
	if !bytes.Equal(e.mem[:5000], content("redis/0", "k0", 5000)) {
		t.Error("loaded are other bytes")
	}
}

func TestCancel(t *testing.T) {
	const jobs = 20
	r, cold := newColdRig(t, jobs, 5000)
	open := cold.shut()
	defer open()
	e := r.engine(jobs * 5000)
	n := e.attach()
	e.hanging(n, 5000, jobs)
	// Those that wait and then those that run, while the tier still hangs.
	for j := jobs - 1; j >= 0; j-- {
		if rep, err := e.Do("CASCADE.CANCEL", strconv.Itoa(j)); err != nil || rep.Int != 1 {
			t.Errorf("CANCEL %d: %+v, %v", j, rep, err)
		}
	}
	if rep, err := e.Do("CASCADE.CANCEL", "1000"); err != nil || rep.Int != 0 {
		t.Errorf("CANCEL of no job: %+v, %v", rep, err)
	}
	for j, s := range e.told(jobs) {
		if s != "2" {
			t.Errorf("job %d: %s", j, s)
		}
	}
	if rep, err := e.Do("CASCADE.CANCEL", "0"); err != nil || rep.Int != 0 {
		t.Errorf("CANCEL again: %+v, %v", rep, err)
	}
	for i, b := range e.mem {
		if b != 0 {
			t.Fatalf("byte %d was written", i)
		}
	}
	open()
	if got := e.move("CASCADE.LOAD", n, "redis/0", at(0, 5000), "KEYS", "k0"); got != "1" {
		t.Errorf("LOAD afterwards: %s", got)
	}
}

// STOREs that wait for room are cancelled while they do.
func TestCancelOfAStoreWithoutRoom(t *testing.T) {
	r := newRig(t, 8<<20)
	r.store.SetLimits(cascade.Limits{}) // which waits for room for 5 s
	e := r.engine(1 << 20)
	n := e.attach()
	for i := 0; ; i++ {
		key := fmt.Sprint("k", i)
		j := 1000 + i
		e.queue(j, "CASCADE.STORE", n, "ns", at(0, 1<<20), "KEYS", key)
		rep, err := e.Do("CASCADE.DONE", "500")
		if err != nil {
			t.Fatal(err)
		}
		if len(rep.Elems) == 0 { // it waits for room
			if rep, err := e.Do("CASCADE.CANCEL", strconv.Itoa(j)); err != nil || rep.Int != 1 {
				t.Errorf("CANCEL: %+v, %v", rep, err)
			}
			if got := e.told(1)[int64(j)]; got != "2" {
				t.Errorf("status %s", got)
			}
			return
		}
		v, err := r.store.Get(t.Context(), "ns", key)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Release()
	}
}

func TestTooManyJobsAreBusy(t *testing.T) {
	r, cold := newColdRig(t, 4, 5000)
	open := cold.shut()
	defer open()
	e, other := r.engine(1<<20), r.engine(1<<20)
	n, no := e.attach(), other.attach()
	load := func(j int) []string {
		return []string{"CASCADE.LOAD", n, "redis/0", at(0, 5000), "JOB", strconv.Itoa(j), "KEYS", "k0"}
	}
	for j := range transfer.MaxJobs {
		if _, err := e.Do(load(j)...); err != nil {
			t.Fatal(j, err)
		}
	}
	if _, err := e.Do(load(transfer.MaxJobs)...); code(err) != "BUSY" {
		t.Errorf("one job more: %v", err)
	}
	if _, err := e.Do(load(3)...); code(err) != "ERR" {
		t.Errorf("the same number: %v", err)
	}
	if got := r.srv.jobs.Unfinished(); got != transfer.MaxJobs {
		t.Errorf("%d jobs wait", got)
	}
	// That is one connection's own trouble, and of jobs only.
	other.queue(3, "CASCADE.STORE", no, "ns", at(0, 10), "KEYS", "k")
	if got := e.move("CASCADE.STORE", n, "ns", at(0, 10), "KEYS", "k"); got != "1" {
		t.Errorf("STORE: %s", got)
	}
	// Finished jobs count until they are told.
	open()
	if got := other.told(1)[3]; got != "1" {
		t.Errorf("the other's job: %s", got)
	}
	for r.srv.jobs.Unfinished() > 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := e.Do(load(transfer.MaxJobs)...); code(err) != "BUSY" {
		t.Errorf("one job more before DONE: %v", err)
	}
	for j, s := range e.told(transfer.MaxJobs) {
		if s != "1" {
			t.Errorf("job %d: %s", j, s)
		}
	}
	if _, err := e.Do(load(3)...); err != nil {
		t.Errorf("after DONE: %v", err)
	}
}

func TestManyExtentsAreBusy(t *testing.T) {
	r, cold := newColdRig(t, 4, 5000)
	open := cold.shut()
	defer open()
	e := r.engine(4 << 20)
	n := e.attach()
	e.hanging(n, 5000, 4)
	var pairs []uint64
	for i := range 100_000 {
		pairs = append(pairs, uint64(i)*16, 1)
	}
	extents := at(pairs...)
	for j := 100; ; j++ {
		_, err := e.Do("CASCADE.LOAD", n, "redis/0", extents, "JOB", strconv.Itoa(j), "KEYS", "k0")
		if code(err) == "BUSY" {
			break
		}
		if err != nil || (j-100)*len(extents) > transfer.MaxJobBytes {
			t.Fatalf("job %d: %v", j, err)
		}
	}
}

func TestNotify(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.engine(1 << 20)
	first, second := eventfd(t), eventfd(t)
	for i, event := range []int{first, second} {
		if rep, err := e.doWith([]int{e.fd, event}, "CASCADE.REGION", "FD", "NOTIFY"); err != nil || rep.Int != int64(i+1) {
			t.Fatal(rep, err)
		}
	}
	counted := func(event int) (n uint64) {
		var p [8]byte
		if _, err := unix.Read(event, p[:]); err == nil {
			n = binary.NativeEndian.Uint64(p[:])
		}
		return n
	}
	for j := range 5 {
		e.queue(j, "CASCADE.STORE", "1", "ns", at(0, 10), "KEYS", "k")
	}
	e.told(5)
	if a, b := counted(first), counted(second); a != 5 || b != 5 {
		t.Errorf("5 jobs count %d and %d", a, b)
	}
	if _, err := e.Do("CASCADE.REGION", "DETACH", "2"); err != nil {
		t.Fatal(err)
	}
	// One that nobody reads, and that is full, holds nothing up.
	if _, err := unix.Write(first, binary.NativeEndian.AppendUint64(nil, 1<<64-2)); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(first, false); err != nil {
		t.Fatal(err)
	}
	e.queue(9, "CASCADE.STORE", "1", "ns", at(0, 10), "KEYS", "k")
	e.told(1)
	if a, b := counted(first), counted(second); a != 1<<64-2 || b != 0 {
		t.Errorf("the full one has %d, the detached one %d", a, b)
	}
}

// DETACH waits for the jobs of its region, and for no other.
func TestDetachWaitsForJobs(t *testing.T) {
	r, cold := newColdRig(t, 4, 5000)
	open := cold.shut()
	defer open()
	e := r.engine(4 * 5000)
	d, m := r.open()
	n, idle := e.attach(), e.attach()
	e.hanging(n, 5000, 4)
	if _, err := e.Do("CASCADE.REGION", "DETACH", idle); err != nil {
		t.Fatal(err)
	}
	r.settles(d+1, m+1)
	e.Send("CASCADE.REGION", "DETACH", n)
	if err := e.Flush(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	if _, now := r.open(); now != m+1 {
		t.Error("the region went while jobs use it")
	}
	open()
	if err := e.ReceiveOK(); err != nil {
		t.Fatal(err)
	}
	r.settles(d, m)
	for j, s := range e.told(4) {
		if s != "1" {
			t.Errorf("job %d: %s", j, s)
		}
	}
}

// However a client goes, nothing of its memory is left, and it is told by
// end-of-file when that is so.
func TestConnectionEndsWithJobs(t *testing.T) {
	for name, last := range map[string][]string{
		"while jobs run": nil,
		"in DONE":        {"CASCADE.DONE", "5000"},
		"in DETACH":      {"CASCADE.REGION", "DETACH", "1"},
		"in LOAD":        {"CASCADE.LOAD", "1", "redis/0", at(0, 5000), "KEYS", "k0"},
	} {
		for how, gone := range map[string]bool{"killed": true, "half closed": false} {
			t.Run(name+", "+how, func(t *testing.T) {
				r, cold := newColdRig(t, 40, 5000)
				r.store.SetLimits(cascade.Limits{FetchDeadline: time.Minute}) // longer than this test waits
				open := cold.shut()
				defer open()
				e := r.engine(40 * 5000)
				event := eventfd(t)
				d, m := r.open()
				if rep, err := e.doWith([]int{e.fd, event}, "CASCADE.REGION", "FD", "NOTIFY"); err != nil || rep.Int != 1 {
					t.Fatal(rep, err)
				}
				e.hanging("1", 5000, 40)
				if last != nil {
					e.Send(last...)
					if err := e.Flush(); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(20 * time.Millisecond) // it is in that command, though nothing depends on it
				if gone {
					e.conn.Close()
				} else {
					if err := e.conn.CloseWrite(); err != nil {
						t.Fatal(err)
					}
					answers, err := io.ReadAll(e.conn.UnixConn)
					if err != nil {
						t.Error(err)
					}
					if name == "in LOAD" && !bytes.HasSuffix(answers, []byte("$1\r\n\x02\r\n")) {
						t.Errorf("LOAD answers %q, want that it was cancelled", answers)
					}
					// End-of-file: from now on the memory is the client's, and the tier still hangs.
					if _, now := r.open(); now != m {
						t.Errorf("%d mappings at end-of-file, want the client's alone", now)
					}
					if n := r.srv.jobs.Unfinished(); n != 0 {
						t.Errorf("%d jobs are not over at end-of-file", n)
					}
				}
				r.settles(d, m)
				if n := copies(t, event); n != 1 {
					t.Errorf("%d descriptors of the eventfd are open", n)
				}
				if n := r.srv.jobs.Unfinished(); n != 0 {
					t.Errorf("%d jobs are left", n)
				}
				if r.srv.connections() > 1 {
					t.Errorf("%d connections are left", r.srv.connections())
				}
			})
		}
	}
}
