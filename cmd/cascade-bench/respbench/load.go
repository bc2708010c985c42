package respbench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/resp"
)

// op is what a phase does.
type op string

const (
	opSet op = "set"
	opGet op = "get"
)

// phasePatience bounds one phase, so that a server that stops answering ends
// the measurement with an error.
const phasePatience = 2 * time.Minute

// load drives one subject through the connections of one setting. Connection
// i works on the values i, i+conns, i+2·conns, …, which are its own.
type load struct {
	subject *subject
	values  *kit.Values
	keys    []string
	last    []uint64 // stamp of each value as this subject has it
	conns   []*loadConn
}

type loadConn struct {
	raw    *plainConn
	client *resp.Client
	room   []byte // where values arrive, outside the Go heap
	got    int    // the value that lies in room; -1: none
}

func newLoad(s *subject, v *kit.Values, count, conns int) (*load, error) {
	l := &load{subject: s, values: v, last: make([]uint64, count)}
	for i := range count {
		l.keys = append(l.keys, "bench:"+strconv.Itoa(conns)+":"+strconv.Itoa(i))
	}
	for range conns {
		raw, err := dialPlain(s.network, s.addr)
		if err != nil {
			_ = l.close() // the refusal is what matters
			return nil, fmt.Errorf("bench: %d connections to %s: %w", conns, s.Name, err)
		}
		c := &loadConn{raw: raw, client: resp.NewClient(raw, 0), got: -1}
		l.conns = append(l.conns, c)
		if c.room, err = kit.Map(v.Size); err != nil {
			_ = l.close()
			return nil, err
		}
	}
	return l, nil
}

// run performs n operations in all, divided among the connections, and returns
// how long they took, from the first command to the last answer.
func (l *load) run(ctx context.Context, what op, n int) (time.Duration, error) {
	each := max(1, n/len(l.conns))
	first := l.values.Stamps(each * len(l.conns))
	defer l.interruptible(ctx)()
	defer threads(len(l.conns))()
	start, failed := make(chan struct{}), make(chan error, len(l.conns))
	for i := range l.conns {
		go func() {
			<-start
			failed <- l.work(i, what, each, first+uint64(i*each)+1)
		}()
	}
	began := time.Now()
	close(start)
	var err error
	for range l.conns {
		if e := <-failed; e != nil && err == nil {
			err = fmt.Errorf("bench: %s on %s: %w", what, l.subject.Name, errors.Join(ctx.Err(), e))
			l.hangUp() // nobody waits for the others' answers any more
		}
	}
	return time.Since(began), err
}

// threads lets n goroutines wait in system calls that Go's scheduler is not told
// of, each on a thread of its own and in a place that nobody else needs; the
// function it returns ends that. It is of the whole process.
func threads(n int) func() {
	was := runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	return func() { runtime.GOMAXPROCS(was) }
}

// interruptible makes operations fail when ctx ends or they take too long; the
// function it returns ends that.
func (l *load) interruptible(ctx context.Context) func() {
	ctx, cancel := context.WithTimeout(ctx, phasePatience)
	stop := context.AfterFunc(ctx, l.hangUp)
	return func() { stop(); cancel() }
}

func (l *load) hangUp() {
	for _, c := range l.conns {
		_ = c.raw.Close()
	}
}

// work is one connection's share of a phase.
func (l *load) work(conn int, what op, n int, seq uint64) error {
	c, v := l.conns[conn], l.values
	for i, k := 0, conn; i < n; i, k = i+1, k+len(l.conns) {
		if k >= len(l.keys) {
			k = conn
		}
		if what == opSet {
			kit.Stamp(v.At(k), seq)
			if err := c.client.Set(l.keys[k], v.At(k)); err != nil {
				return err
			}
			l.last[k] = seq
			seq++
			continue
		}
		got, err := c.client.Get(l.keys[k], c.room)
		if err == nil && got != v.Size {
			err = fmt.Errorf("%w: %s has %d bytes, stored were %d", kit.ErrWrong, l.keys[k], got, v.Size)
		}
		if err != nil {
			return err
		}
		c.got = k
	}
	return nil
}

// check compares the value that each connection got last, byte for byte.
func (l *load) check() error {
	for _, c := range l.conns {
		if c.got < 0 {
			continue
		}
		if err := l.values.Check(c.got, l.last[c.got], c.room); err != nil {
			return fmt.Errorf("%s: %w", l.subject.Name, err)
		}
	}
	return nil
}

// checkAll fetches and compares every value.
func (l *load) checkAll(ctx context.Context) error {
	defer l.interruptible(ctx)()
	c := l.conns[0]
	for k, key := range l.keys {
		n, err := c.client.Get(key, c.room)
		if err == nil {
			err = l.values.Check(k, l.last[k], c.room[:n])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.subject.Name, err)
		}
	}
	c.got = -1
	return nil
}

// forget deletes the values, so that the next setting finds the same room.
func (l *load) forget() error {
	for _, key := range l.keys {
		if _, err := l.conns[0].client.Do("DEL", key); err != nil {
			return fmt.Errorf("bench: %s: %w", l.subject.Name, err)
		}
	}
	return nil
}

func (l *load) close() error {
	l.hangUp()
	var err error
	for _, c := range l.conns {
		err = errors.Join(err, c.raw.release())
		if c.room != nil {
			err = errors.Join(err, unix.Munmap(c.room))
		}
	}
	return err
}
