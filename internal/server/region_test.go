package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/resp"
)

// sender sends descriptors with the first byte of the next write.
type sender struct {
	*net.UnixConn
	fds []int
}

func (s *sender) Write(p []byte) (int, error) {
	if s.fds == nil {
		return s.UnixConn.Write(p)
	}
	oob := unix.UnixRights(s.fds...)
	s.fds = nil
	n, _, err := s.WriteMsgUnix(p, oob, nil)
	return n, err
}

// engine is a client with memory of its own, as inference engines have it.
type engine struct {
	*resp.Client
	t    testing.TB
	conn *sender
	fd   int    // of mem
	mem  []byte // its memory, shared with the rank once it is attached
}

// connect returns a client that can send descriptors.
func (r *rig) connect() (*sender, *resp.Client) {
	r.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.sock, Net: "unix"})
	if err != nil {
		r.t.Fatal(err)
	}
	s := &sender{UnixConn: c}
	client := resp.NewClient(s, 30*time.Second)
	r.t.Cleanup(func() { client.Close() })
	return s, client
}

// engine connects a client that has a memfd of size bytes.
func (r *rig) engine(size int) *engine {
	r.t.Helper()
	e := &engine{t: r.t, fd: memfd(r.t, size)}
	e.mem = mapped(r.t, e.fd, size)
	e.conn, e.Client = r.connect()
	return e
}

func memfd(t testing.TB, size int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("engine", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	return fd
}

func mapped(t testing.TB, fd, size int) []byte {
	t.Helper()
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// doWith is Do with descriptors beside the command.
func (e *engine) doWith(fds []int, args ...string) (resp.Reply, error) {
	e.conn.fds = fds
	return e.Do(args...)
}

// attach attaches the engine's memory.
func (e *engine) attach() string {
	e.t.Helper()
	rep, err := e.doWith([]int{e.fd}, "CASCADE.REGION", "FD")
	if err != nil || rep.Kind != resp.KindInt {
		e.t.Fatalf("REGION FD: %+v, %v", rep, err)
	}
	return strconv.FormatInt(rep.Int, 10)
}

// at encodes extents: pairs of offset and length.
func at(pairs ...uint64) string {
	var p []byte
	for _, n := range pairs {
		p = binary.LittleEndian.AppendUint64(p, n)
	}
	return string(p)
}

// move does a STORE or LOAD and returns the statuses, one digit for each key.
func (e *engine) move(args ...string) string {
	e.t.Helper()
	rep, err := e.Do(args...)
	if err != nil {
		e.t.Fatalf("%.60q: %v", args, err)
	}
	return digits(rep.Str)
}

func digits(status []byte) string {
	return strings.Map(func(c rune) rune { return c + '0' }, string(status))
}

// code is the first word of an error reply, "" of none.
func code(err error) string {
	var se *resp.ServerError
	if errors.As(err, &se) {
		return se.Code()
	} else if err != nil {
		return err.Error()
	}
	return ""
}

func TestBlocksGoFromRegionToRegion(t *testing.T) {
	r := newRig(t, 64<<20)
	a, b := r.engine(8<<20), r.engine(8<<20)
	copy(a.mem, randomBytes(7, len(a.mem)))
	na, nb := a.attach(), b.attach()
	// Two blocks, each of a piece in front and one at the back, swapped on arrival.
	here := at(0, 100_000, 5<<20, 200_001, 100_000, 1, 6<<20, 300_000)
	there := at(4<<20, 100_001, 1<<20, 200_000, 77, 200_001, 3<<20, 100_000)
	if got := a.move("CASCADE.STORE", na, "ns", here, "CHAIN", "KEYS", "k1", "k2"); got != "11" {
		t.Fatal("STORE:", got)
	}
	if got := b.move("CASCADE.LOAD", nb, "ns", there, "KEYS", "k1", "k2"); got != "11" {
		t.Fatal("LOAD:", got)
	}
	for i, k := range []string{"k1", "k2"} {
		v, err := r.store.Get(t.Context(), "ns", k)
		if err != nil {
			t.Fatal(err)
		}
		want := append(append([]byte{}, a.mem[i*100_000:i*100_000+[]int{100_000, 1}[i]]...), a.mem[(5+i)<<20:(5+i)<<20+[]int{200_001, 300_000}[i]]...)
		if !bytes.Equal(v.Bytes(), want) {
			t.Errorf("%s is stored wrongly", k)
		}
		v.Release()
		got := append(append([]byte{}, b.mem[[]int{4 << 20, 77}[i]:][:[]int{100_001, 200_001}[i]]...), b.mem[[]int{1 << 20, 3 << 20}[i]:][:[]int{200_000, 100_000}[i]]...)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is loaded wrongly", k)
		}
	}
	if info, _ := r.store.Stat(t.Context(), "ns", "k2"); info.Parent != "k1" {
		t.Errorf("CHAIN: the parent of k2 is %q", info.Parent)
	}
}

func TestJobIsToldByDone(t *testing.T) {
	r := newRig(t, 64<<20)
	e := r.engine(1 << 20)
	copy(e.mem, randomBytes(1, len(e.mem)))
	n := e.attach()
	if rep, err := e.Do("CASCADE.STORE", n, "ns", at(0, 1000, 1000, 1000), "JOB", "7", "KEYS", "a", "b"); err != nil || rep.Text() != "QUEUED" {
		t.Fatal(rep, err)
	}
	rep, err := e.Do("CASCADE.DONE", "5000")
	if err != nil || len(rep.Elems) != 1 || rep.Elems[0].Elems[0].Int != 7 || digits(rep.Elems[0].Elems[1].Str) != "11" {
		t.Fatalf("DONE: %+v, %v", rep, err)
	}
	if rep, err = e.Do("CASCADE.DONE", "5000"); err != nil || len(rep.Elems) != 0 {
		t.Fatalf("DONE without a job: %+v, %v", rep, err)
	}
}

func TestRegionsByPathEnd(t *testing.T) {
	r := newRig(t, 16<<20)
	path := "/dev/shm/cascade-test-" + strconv.Itoa(unix.Getpid())
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(unix.Unlink(path), unix.Close(fd)) })
	if err := unix.Ftruncate(fd, 1<<20); err != nil {
		t.Fatal(err)
	}
	copy(mapped(t, fd, 1<<20), "hello")
	_, c := r.connect()
	rep, err := c.Do("CASCADE.REGION", "PATH", path)
	if err != nil || rep.Int != 1 {
		t.Fatalf("REGION PATH: %+v, %v", rep, err)
	}
	if rep, err := c.Do("CASCADE.STORE", "1", "ns", at(0, 5), "KEYS", "k"); err != nil || digits(rep.Str) != "1" {
		t.Fatal(rep, err)
	}
	if rep, err := c.Do("CASCADE.REGION", "DETACH", "1"); err != nil || rep.Text() != "OK" {
		t.Fatal(rep, err)
	}
	if _, err := c.Do("CASCADE.STORE", "1", "ns", at(0, 5), "KEYS", "k"); code(err) != "ERR" {
		t.Errorf("a detached region is used: %v", err)
	}
	v, err := r.store.Get(t.Context(), "ns", "k")
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	if string(v.Bytes()) != "hello" {
		t.Errorf("stored: %q", v.Bytes())
	}
}
