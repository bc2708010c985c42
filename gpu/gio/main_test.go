package gio

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/testneed"
)

// role is what a process of this test binary is beside the test.
const role = "CASCADE_GIO_TEST_ROLE"

func TestMain(m *testing.M) {
	roles := map[string]func() error{"": nil, "device": beDevice, "client": beClient, "server": beServer, "gpu": beHostOfGPU}
	if be := roles[os.Getenv(role)]; be != nil {
		fmt.Fprintln(os.Stderr, os.Getenv(role), be())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// beDevice spins sealed over the region of descriptor 3.
func beDevice() error {
	d, err := OpenDevice(os.NewFile(3, "region"))
	if err != nil {
		return err
	}
	if err := d.SpinSealed(); err != nil {
		return err
	}
	unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	return nil
}

func inherited(fd uintptr) (*net.UnixConn, error) {
	f := os.NewFile(fd, "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// beClient reads without pause, and reports by a byte that it does.
func beClient() error {
	c, err := inherited(3)
	if err != nil {
		return err
	}
	q, err := Attach(c, H100)
	if err != nil {
		return err
	}
	q.StartDevice()
	for n := 0; ; n++ {
		got, err := q.GetIOCB(2, nil)
		if err != nil {
			return err
		}
		for k, b := range got {
			fill(b, k, int(q.r.numIOCTX), Read)
			if err := q.IssueIO([]uint32{b.ID}, 0); err != nil {
				return err
			}
		}
		if n == 3 {
			fmt.Println("under way")
		}
		for _, b := range got {
			if err := q.WaitCQE(context.Background(), b.ID); err != nil {
				return err
			}
		}
		if err := q.Release(got[0].ID, got[1].ID); err != nil {
			return err
		}
	}
}

// beServer serves a file until it is killed.
func beServer() error {
	c, err := inherited(3)
	if err != nil {
		return err
	}
	f, err := os.Open(os.Args[1])
	if err != nil {
		return err
	}
	s, err := Serve(Options{Depth: 4, NumIOCTX: 16, Files: []*os.File{f}, DataBytes: dataBytes, Engine: os.Args[2]})
	if err != nil {
		return err
	}
	if err := s.Send(c); err != nil {
		return err
	}
	select {}
}

// start runs this binary in a role, which is killed with the test. Its standard
// output is read by the test.
func start(t *testing.T, name string, fd *os.File, args ...string) (*exec.Cmd, *os.File) {
	t.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), role+"="+name, "GODEBUG=asyncpreemptoff=1")
	cmd.ExtraFiles = []*os.File{fd}
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		out.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, out
}

const (
	blockBytes = 16 << 10
	fileBlocks = 64
	dataBytes  = 2 << 20
)

// at is the word at an offset of a file.
func at(off uint64) uint64 {
	x := (off + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return x ^ x>>29
}

func pattern(off uint64, n int) []byte {
	p := make([]byte, n)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(p[i:], at(off+uint64(i)))
	}
	return p
}

// testFile is a file of fileBlocks blocks, past the page cache where it can be.
func testFile(t *testing.T, flags int) *os.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(name, pattern(0, fileBlocks*blockBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, flags|unix.O_DIRECT, 0)
	if err != nil {
		f, err = os.OpenFile(name, flags, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// cell is the place of an IOCTX in the data memory.
func cell(b *IOCB, i int) int { return (int(b.ID)*len(b.Ctx) + i) * blockBytes % dataBytes }

// fill makes an IOCB of n blocks, in an order that depends on seed.
func fill(b *IOCB, seed, n int, op Op) {
	for i := range n {
		b.Ctx[i] = IOCTX{Address: uint64(cell(b, i)), Length: blockBytes, Offset: uint64((i*37+seed*11)%fileBlocks) * blockBytes, Bytes: blockBytes}
	}
	b.Set(op, n)
}

// checkData compares what an IOCB read.
func checkData(t *testing.T, q *Queue, b *IOCB, n int) {
	t.Helper()
	for i := range n {
		if got := q.Data()[cell(b, i):][:blockBytes]; !b.Failed(i) && !bytes.Equal(got, pattern(b.Ctx[i].Offset, blockBytes)) {
			t.Errorf("IOCB %d: block %d at %d has other bytes", b.ID, i, b.Ctx[i].Offset)
			return
		}
	}
}

// bothEngines runs a test over each engine.
func bothEngines(t *testing.T, test func(t *testing.T, engine string)) {
	for _, engine := range []string{EngineUring, EngineUser} {
		t.Run(engine, func(t *testing.T) {
			if engine == EngineUring {
				needUring(t)
			}
			test(t, engine)
		})
	}
}

func needUring(t *testing.T) {
	t.Helper()
	f, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := Serve(Options{Depth: 1, NumIOCTX: 1, Files: []*os.File{f}, DataBytes: pageBytes, Engine: EngineUring})
	if err != nil && !errors.Is(err, ErrUnsupported) {
		t.Fatal(err)
	}
	testneed.That(t, err == nil, "io_uring with SQPOLL and NO_MMAP", "Linux 6.10 or later, not forbidden by seccomp or kernel.io_uring_disabled")
	closeServer(t, s)
}

func closeServer(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Close(bound(t)); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
}

// bound is a context that ends only when something hangs.
func bound(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// held is what the process has open and mapped of this package's.
func held(t *testing.T) string {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, fd := range fds {
		name, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		if strings.Contains(name, "memfd:cascade-gio") || strings.Contains(name, "[io_uring]") {
			found = append(found, name)
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:cascade-gio") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return strings.Join(found, "\n")
}

// pair is both ends of a socket; the first as a file to inherit.
func pair(t *testing.T) (*os.File, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := inherited(uintptr(fds[1]))
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "socket")
	t.Cleanup(func() { f.Close(); c.Close() })
	return f, c
}
