package server

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testuser"
	"cascadekv/internal/transfer"
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

// open counts what this process has open or mapped of the engine's memory,
// under the name that memfd gave it.
func (r *rig) open() (descriptors, mappings int) {
	r.t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, "/memfd:engine") {
			descriptors++
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		r.t.Fatal(err)
	}
	return descriptors, strings.Count(string(maps), "/memfd:engine")
}

// settles waits until as much is open as said.
func (r *rig) settles(descriptors, mappings int) {
	r.t.Helper()
	var d, m int
	for range 2000 {
		if d, m = r.open(); d <= descriptors && m <= mappings { // what an earlier test left may have ended meanwhile
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.t.Errorf("%d descriptors and %d mappings are left, want %d and %d", d, m, descriptors, mappings)
}

// copies counts the descriptors of this process that stand for an eventfd.
func copies(t testing.TB, event int) (n int) {
	t.Helper()
	id := func(fd string) string {
		info, _ := os.ReadFile("/proc/self/fdinfo/" + fd) // of one that is closed meanwhile: nothing
		_, line, _ := strings.Cut(string(info), "eventfd-id:")
		line, _, _ = strings.Cut(line, "\n")
		return strings.TrimSpace(line)
	}
	own := id(strconv.Itoa(event))
	if own == "" {
		t.Skip("this kernel does not tell eventfds apart")
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if id(fd.Name()) == own {
			n++
		}
	}
	return n
}

func eventfd(t testing.TB) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func TestRegionsThatCanNotBe(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.engine(1 << 20)
	event := eventfd(t)
	var pipe, pair [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := os.CreateTemp(".", "region-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close(); os.Remove(disk.Name()) })
	if err := disk.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	foreign := memfd(t, 1<<20)
	if os.Geteuid() == 0 {
		if err := unix.Fchown(foreign, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	} else {
		foreign = pipe[0]
	}
	empty := memfd(t, 0)
	d, m := r.open()
	for name, x := range map[string]struct {
		fds  []int
		args []string
	}{
		"nothing":               {nil, []string{"FD"}},
		"pipe":                  {[]int{pipe[1]}, []string{"FD"}},
		"socket":                {[]int{pair[0]}, []string{"FD"}},
		"on disk":               {[]int{int(disk.Fd())}, []string{"FD"}},
		"another user's":        {[]int{foreign}, []string{"FD"}},
		"empty":                 {[]int{empty}, []string{"FD"}},
		"eventfd":               {[]int{event}, []string{"FD"}},
		"no eventfd came":       {[]int{e.fd}, []string{"FD", "NOTIFY"}},
		"eventfd is none":       {[]int{e.fd, e.fd}, []string{"FD", "NOTIFY"}},
		"eventfd is a pipe":     {[]int{e.fd, pipe[1]}, []string{"FD", "NOTIFY"}},
		"the other order":       {[]int{event, e.fd}, []string{"FD", "NOTIFY"}},
		"unknown word":          {[]int{e.fd}, []string{"FILE"}},
		"too many words":        {[]int{e.fd}, []string{"FD", "NOTIFY", "NOTIFY"}},
		"path without one":      {nil, []string{"PATH"}},
		"empty path":            {[]int{e.fd}, []string{"PATH", ""}},
		"path on disk":          {nil, []string{"PATH", disk.Name()}},
		"path that is not":      {nil, []string{"PATH", "/dev/shm/none/such"}},
		"path without event":    {nil, []string{"PATH", "/dev/shm/x", "NOTIFY"}},
		"path with wrong event": {[]int{pipe[0]}, []string{"PATH", "/dev/shm/x", "NOTIFY"}},
		"detach of none":        {nil, []string{"DETACH", "1"}},
		"detach of no number":   {nil, []string{"DETACH", "x"}},
		"detach and notify":     {nil, []string{"DETACH", "NOTIFY"}},
	} {
		if rep, err := e.doWith(x.fds, append([]string{"CASCADE.REGION"}, x.args...)...); code(err) != "ERR" {
			t.Errorf("%s: %+v, %v", name, rep, err)
		}
	}
	r.settles(d, m)
	if n := copies(t, event); n != 1 {
		t.Errorf("%d descriptors of the eventfd are open", n)
	}
	if n := e.attach(); n != "1" {
		t.Errorf("region %s", n)
	}
}

func TestDescriptorsThatNobodyTakesAreClosed(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.engine(1 << 20)
	d, m := r.open()
	for range 5 {
		if _, err := e.doWith([]int{e.fd, e.fd}, "PING"); err != nil {
			t.Fatal(err)
		}
		if _, err := e.doWith([]int{e.fd, e.fd, e.fd, e.fd, e.fd}, "SET", "k", "v"); err != nil {
			t.Fatal(err)
		}
	}
	r.settles(d, m)
	// What came with an earlier command is not taken for this one's.
	if _, err := e.doWith([]int{e.fd}, "PING"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Do("CASCADE.REGION", "FD"); code(err) != "ERR" {
		t.Errorf("REGION without a descriptor: %v", err)
	}
	// More than are wanted: the first ones count.
	if rep, err := e.doWith([]int{e.fd, e.fd, e.fd}, "CASCADE.REGION", "FD"); err != nil || rep.Int != 1 {
		t.Errorf("REGION with three: %+v, %v", rep, err)
	}
	r.settles(d+1, m+1)
	// A command that never ends.
	e.conn.fds = []int{e.fd, e.fd}
	if _, err := e.conn.Write([]byte("*2\r\n$14\r\nCASCADE.RE")); err != nil {
		t.Fatal(err)
	}
	r.settles(d+3, m+1)
	e.Close()
	r.settles(d, m)
}

// Commands in one write, each with its own descriptor: each gets the right one.
func TestPipelinedRegions(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.engine(4096)
	other := memfd(t, 8192)
	for _, fd := range []int{e.fd, other} {
		e.conn.fds = []int{fd}
		e.Send("CASCADE.REGION", "FD")
		if err := e.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	e.Send("CASCADE.STORE", "2", "ns", at(4096, 4096), "KEYS", "k")
	e.Send("CASCADE.STORE", "1", "ns", at(4096, 4096), "KEYS", "k")
	if err := e.Flush(); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"1", "2", "\x01"} {
		if rep, err := e.Receive(); err != nil || rep.Text() != want {
			t.Errorf("answer %d: %+v, %v", i, rep, err)
		}
	}
	if _, err := e.Receive(); code(err) != "ERR" {
		t.Errorf("the first region has the size of the second: %v", err)
	}
}

func TestRegionsAreForTheOwnUser(t *testing.T) {
	r := newRig(t, 16<<20, func(o *Options) { o.AllowUIDs = []int{65534} })
	clients := map[string]*resp.Client{"tcp": r.client("tcp")}
	if os.Geteuid() == 0 {
		clients["another user"] = r.clientOf(65534)
	}
	for name, c := range clients {
		for _, args := range [][]string{
			{"CASCADE.REGION", "FD"},
			{"CASCADE.REGION", "PATH", "/dev/shm/x"},
			{"CASCADE.REGION", "DETACH", "1"},
			{"CASCADE.STORE", "1", "ns", at(0, 1), "KEYS", "k"},
			{"CASCADE.LOAD", "1", "ns", at(0, 1), "KEYS", "k"},
			{"CASCADE.DONE"},
			{"CASCADE.CANCEL", "1"},
		} {
			if _, err := c.Do(args...); code(err) != "NOPERM" {
				t.Errorf("%s: %s: %v", name, args[0], err)
			}
		}
		if rep, err := c.Do("HELLO"); err != nil || len(rep.Field("modules").Elems) != 0 {
			t.Errorf("%s: HELLO: %+v, %v", name, rep, err)
		}
	}
	e := r.engine(4096)
	rep, err := e.Do("HELLO", "3")
	if err != nil || len(rep.Field("modules").Elems) != 1 {
		t.Fatalf("HELLO: %+v, %v", rep, err)
	}
	if m := rep.Field("modules").Elems[0]; m.Field("name").Text() != "cascade" || m.Field("ver").Int != 2 {
		t.Errorf("HELLO: %+v", m)
	}
}

// clientOf connects as another user.
func (r *rig) clientOf(uid int) *resp.Client {
	r.t.Helper()
	for dir := filepath.Dir(r.sock); len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := os.Chmod(r.sock, 0o666); err != nil {
		r.t.Fatal(err)
	}
	c := resp.NewClient(testuser.Dial(r.t, uid, net.Dialer{}, "unix", r.sock), 20*time.Second)
	r.t.Cleanup(func() { c.Close() })
	return c
}

func TestManyRegionsAreRefused(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.engine(4096)
	d, m := r.open()
	for range transfer.MaxRegions {
		e.attach()
	}
	if _, err := e.doWith([]int{e.fd}, "CASCADE.REGION", "FD"); code(err) != "ERR" {
		t.Errorf("one region more: %v", err)
	}
	r.settles(d+transfer.MaxRegions, m+transfer.MaxRegions)
	if _, err := e.Do("CASCADE.REGION", "DETACH", "3"); err != nil {
		t.Error(err)
	}
	if n := e.attach(); n != strconv.Itoa(transfer.MaxRegions+1) {
		t.Errorf("region %s", n)
	}
	e.Close()
	r.settles(d, m)
}
