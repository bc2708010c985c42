package gio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/hangfs"
)

// small are facts of a device of which one SM has 4 I/Os.
var small = Facts{UnitSMs: 4, WarpsPerSM: 1, ThreadsPerWarp: 8}

func initQueue(t *testing.T, engine string, o Options) *Queue {
	t.Helper()
	o.Engine = engine
	if o.DataBytes == 0 {
		o.DataBytes = dataBytes
	}
	q, err := InitQueue(4, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	return q
}

func get(t *testing.T, q *Queue, n int, e *Event) []*IOCB {
	t.Helper()
	got, err := q.GetIOCB(n, e)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func issue(t *testing.T, q *Queue, sms int, ids ...uint32) {
	t.Helper()
	if err := q.IssueIO(ids, sms); err != nil {
		t.Fatal(err)
	}
}

// TestReads: every byte of many rounds of all IOCBs, at all widths.
func TestReads(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		q := initQueue(t, engine, Options{Device: small, Files: []*os.File{testFile(t, os.O_RDONLY)}})
		got := get(t, q, 4, nil)
		if len(got[0].Ctx) != 16 {
			t.Fatalf("%d IOCTXs", len(got[0].Ctx))
		}
		for round := range 25 {
			n := 1 + round*5%16
			clear(q.Data())
			var ids []uint32
			for k, b := range got {
				fill(b, round+k, n, Read)
				ids = append(ids, b.ID)
			}
			issue(t, q, round%5, ids...)
			for k := range got {
				b := got[len(got)-1-k]
				if err := q.WaitCQE(bound(t), b.ID); err != nil {
					t.Fatal(err)
				}
				checkData(t, q, b, n)
			}
		}
	})
}

func TestWrites(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		f := testFile(t, os.O_RDWR)
		readable, err := os.Open(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		defer readable.Close()
		q := initQueue(t, engine, Options{Device: small, Files: []*os.File{f, readable}})
		b := get(t, q, 1, nil)[0]
		fill(b, 0, 16, Write)
		for i := range 16 {
			copy(q.Data()[cell(b, i):], pattern(b.Ctx[i].Offset+1<<40, blockBytes))
		}
		issue(t, q, 1, b.ID)
		if err := q.WaitCQE(bound(t), b.ID); err != nil {
			t.Fatal(err)
		}
		for i := range 16 {
			p := make([]byte, blockBytes)
			if _, err := readable.ReadAt(p, int64(b.Ctx[i].Offset)); err != nil || !bytes.Equal(p, pattern(b.Ctx[i].Offset+1<<40, blockBytes)) {
				t.Fatalf("block %d: %v", i, err)
			}
		}
		b.Ctx[3].File = 1 // which was opened to be read
		issue(t, q, 0, b.ID)
		var failed *IOError
		if err := q.WaitCQE(bound(t), b.ID); !errors.As(err, &failed) || !errors.Is(err, unix.EBADF) || failed.Failed != 1 || failed.First != 3 {
			t.Errorf("a write to a file that can be read: %v", err)
		}
	})
}

// TestEvents: an IOCB starts when its word has reached its value, also across the
// wrap, and no IOCB waits for the event of another.
func TestEvents(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		q := initQueue(t, engine, Options{Device: small, Files: []*os.File{testFile(t, os.O_RDONLY)}})
		q.Word(1).Store(^uint32(0) - 1)
		first, second, third := get(t, q, 1, &Event{1, 1})[0], get(t, q, 1, &Event{32, 1})[0], get(t, q, 1, nil)[0]
		for _, b := range []*IOCB{first, second, third} {
			fill(b, int(b.ID), 16, Read)
		}
		issue(t, q, 0, first.ID, second.ID, third.ID)
		wait := func(b *IOCB) {
			t.Helper()
			if err := q.WaitCQE(bound(t), b.ID); err != nil {
				t.Fatal(err)
			}
			checkData(t, q, b, 16)
		}
		wait(third)
		short, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if err := q.WaitCQE(short, first.ID); !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("before its event: %v", err)
		}
		if tail := q.r.slots[first.ID].rings.sqTail.Load(); tail != 0 {
			t.Errorf("%d entries were published before the event", tail)
		}
		q.Word(32).Add(1)
		wait(second)
		q.Word(1).Store(1)
		wait(first)
	})
}

// TestErrors: what fails in one I/O is of that one alone.
func TestErrors(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		mem, err := os.Open("/proc/self/mem") // whose first page nobody has: EIO
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		f := testFile(t, os.O_RDONLY)
		q := initQueue(t, engine, Options{Device: small, Files: []*os.File{f, mem}})
		b := get(t, q, 1, nil)[0]
		for name, c := range map[string]struct {
			change func(c *IOCTX)
			errno  unix.Errno
			bytes  int
		}{
			"EIO":           {func(c *IOCTX) { c.File, c.Offset = 1, 0 }, unix.EIO, 0},
			"short":         {func(c *IOCTX) { c.Offset = (fileBlocks-1)*blockBytes + 4096 }, 0, blockBytes - 4096},
			"past the end":  {func(c *IOCTX) { c.Offset = 1 << 40 }, 0, 0},
			"less than all": {func(c *IOCTX) { c.Bytes = 4096 }, 0, 4096},
		} {
			clear(q.Data())
			fill(b, 1, 16, Read)
			c.change(&b.Ctx[5])
			issue(t, q, 2, b.ID)
			err := q.WaitCQE(bound(t), b.ID)
			if name == "less than all" {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			var failed *IOError
			if !errors.As(err, &failed) || !errors.Is(err, ErrIO) || failed.First != 5 || failed.Failed != 1 || failed.Errno != c.errno || failed.Bytes != c.bytes {
				t.Errorf("%s: %v", name, err)
			}
			for i := range 16 {
				if b.Failed(i) != (i == 5) {
					t.Errorf("%s: failed(%d) %v", name, i, b.Failed(i))
				}
			}
			checkData(t, q, b, 16)
		}
	})
}

// TestMistakes of the host are refused before anything is issued.
func TestMistakes(t *testing.T) {
	q := initQueue(t, EngineUser, Options{Device: small, Files: []*os.File{testFile(t, os.O_RDONLY)}})
	b := get(t, q, 1, nil)[0]
	for name, change := range map[string]func(c *IOCTX){
		"no such buffer":     func(c *IOCTX) { c.ID = 1 },
		"beyond the buffer":  func(c *IOCTX) { c.Address = dataBytes - blockBytes + 1 },
		"address that wraps": func(c *IOCTX) { c.Address = ^uint64(0) - 100 },
		"more than memory":   func(c *IOCTX) { c.Bytes = c.Length + 1 },
		"nothing":            func(c *IOCTX) { c.Bytes = 0 },
		"no such file":       func(c *IOCTX) { c.File = 1 },
		"negative offset":    func(c *IOCTX) { c.Offset = 1 << 63 },
	} {
		fill(b, 0, 4, Read)
		change(&b.Ctx[3])
		if err := q.IssueIO([]uint32{b.ID}, 0); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	fill(b, 0, 4, Read)
	for name, err := range map[string]error{
		"not taken":    q.IssueIO([]uint32{b.ID, 3}, 0),
		"out of reach": q.IssueIO([]uint32{4}, 0),
		"twice":        q.IssueIO([]uint32{b.ID, b.ID}, 0),
		"wait":         q.WaitCQE(bound(t), b.ID),
		"release":      q.Release(2),
	} {
		if !errors.Is(err, ErrState) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := q.GetIOCB(4, nil); !errors.Is(err, ErrNoIOCB) {
		t.Errorf("four of three: %v", err)
	}
	if _, err := q.GetIOCB(1, &Event{Word: Events + 1}); !errors.Is(err, ErrOption) {
		t.Errorf("a word that is not there: %v", err)
	}
	if q.r.h.sqTail.Load() != 0 {
		t.Error("something was issued")
	}
	for _, o := range []Options{{Depth: 65}, {NumIOCTX: 3}, {NumIOCTX: 4096}, {DataBytes: 1}, {DataBytes: 17 << 30}, {Engine: "x"}, {Engine: EngineUring, heap: true}, {Files: []*os.File{}}} {
		if o.Files == nil {
			o.Files = []*os.File{os.Stdin}
		}
		if o.DataBytes == 0 {
			o.DataBytes = dataBytes
		}
		if s, err := Serve(o); !errors.Is(err, ErrOption) {
			t.Errorf("%+v: %v, %v", o, s, err)
		}
	}
}

// TestStall: a wait for a device that stalls ends at its deadline. The IOCB and
// its memory stay taken, other IOCBs work, Close reports who is still busy, and
// when the device answers all is given back.
func TestStall(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		fs, err := hangfs.Mount(t.TempDir(), map[string][]byte{"f": pattern(0, fileBlocks*blockBytes)})
		if errors.Is(err, hangfs.ErrUnsupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		fd, err := fs.Open("f")
		if err != nil {
			t.Fatal(err)
		}
		hung := os.NewFile(uintptr(fd), "hung")
		defer func() {
			hung.Close()
			if err := fs.Close(); err != nil {
				t.Error(err)
			}
		}()
		s, err := Serve(Options{Depth: 2, NumIOCTX: 16, Files: []*os.File{hung, testFile(t, os.O_RDONLY)}, DataBytes: dataBytes, Engine: engine})
		if err != nil {
			t.Fatal(err)
		}
		q := s.Queue()
		q.StartDevice()
		got := get(t, q, 2, nil)
		fill(got[0], 0, 4, Read)
		fs.Hang()
		issue(t, q, 0, got[0].ID)
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := q.WaitCQE(short, got[0].ID); !errors.Is(err, ErrTimeout) {
			t.Fatalf("a device that stalls: %v", err)
		}
		if err := q.Release(got[0].ID); !errors.Is(err, ErrState) {
			t.Errorf("release of what is under way: %v", err)
		}
		if engine == EngineUser { // FUSE blocks the kernel's one thread: docs/gio.md §6
			fill(got[1], 3, 16, Read)
			for i := range 16 {
				got[1].Ctx[i].File = 1
			}
			issue(t, q, 0, got[1].ID)
			if err := q.WaitCQE(bound(t), got[1].ID); err != nil {
				t.Fatalf("beside one that stalls: %v", err)
			}
			checkData(t, q, got[1], 16)
		}
		if err := waitUntil(t, func() bool { return fs.Waiting() > 0 }); err != nil {
			t.Fatal(err)
		}
		short, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := s.Close(short); !errors.Is(err, ErrBusy) {
			t.Errorf("close while one stalls: %v", err)
		}
		if err := q.WaitCQE(bound(t), got[0].ID); !errors.Is(err, ErrGone) {
			t.Errorf("wait for what nobody serves: %v", err)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-s.Done():
			t.Error("everything was released under an I/O")
		case <-time.After(300 * time.Millisecond): // the engine has looked several times
		}
		fs.Answer()
		if err := s.Close(bound(t)); err != nil {
			t.Error(err)
		}
		<-s.Done()
		if left := held(t); left != "" {
			t.Errorf("left over:\n%s", left)
		}
	})
}

func waitUntil(t *testing.T, ready func() bool) error {
	for ctx := bound(t); !ready(); time.Sleep(time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// TestStallBeside: I/Os that the kernel waits for do not hold up those beside
// them, and Close takes them back.
func TestStallBeside(t *testing.T) {
	needUring(t)
	never, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer never.Close()
	s, err := Serve(Options{Depth: 2, NumIOCTX: 16, Files: []*os.File{testFile(t, os.O_RDONLY), never}, DataBytes: dataBytes, Engine: EngineUring})
	if err != nil {
		t.Fatal(err)
	}
	q := s.Queue()
	q.StartDevice()
	got := get(t, q, 2, nil)
	fill(got[0], 0, 16, Read)
	got[0].Ctx[7].File, got[0].Ctx[7].Offset = 1, 0
	issue(t, q, 0, got[0].ID)
	for n := range 5 {
		fill(got[1], n, 16, Read)
		issue(t, q, 0, got[1].ID)
		if err := q.WaitCQE(bound(t), got[1].ID); err != nil {
			t.Fatal(err)
		}
		checkData(t, q, got[1], 16)
	}
	short, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := q.WaitCQE(short, got[0].ID); !errors.Is(err, ErrTimeout) {
		t.Errorf("a pipe that nobody writes to: %v", err)
	}
	if err := errors.Join(s.Close(bound(t)), q.Close()); err != nil {
		t.Error(err)
	}
	<-s.Done()
	if left := held(t); left != "" {
		t.Errorf("left over:\n%s", left)
	}
}

// connect starts a process at the other end of a socket.
func connect(t *testing.T, name string, args ...string) (kill func(), out io.Reader, c *net.UnixConn) {
	f, c := pair(t)
	cmd, out := start(t, name, f, args...)
	f.Close()
	return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, out, c
}

// TestClientKilled: a client that is killed in the middle of its batches leaves
// nothing behind in the server, which ends at once.
func TestClientKilled(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		for range 3 {
			s, err := Serve(Options{Depth: 4, NumIOCTX: 16, Files: []*os.File{testFile(t, os.O_RDONLY)}, DataBytes: dataBytes, Engine: engine})
			if err != nil {
				t.Fatal(err)
			}
			kill, out, c := connect(t, "client")
			if err := s.Send(c); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(out, make([]byte, 9)); err != nil {
				t.Fatalf("the client read nothing: %v", err)
			}
			kill()
			if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("the end of a client: %d, %v", n, err)
			}
			c.Close()
			closeServer(t, s)
			if left := held(t); left != "" {
				t.Errorf("left over:\n%s", left)
			}
		}
	})
}

// TestServerKilled: waits for a server that was killed end, with the data or with
// an error, and nothing is left in the client.
func TestServerKilled(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		kill, _, c := connect(t, "server", testFile(t, os.O_RDONLY).Name(), engine)
		q, err := Attach(c, H100)
		if err != nil {
			t.Fatal(err)
		}
		q.StartDevice()
		b := get(t, q, 1, nil)[0]
		fill(b, 2, 16, Read)
		issue(t, q, 0, b.ID)
		if err := q.WaitCQE(bound(t), b.ID); err != nil {
			t.Fatal(err)
		}
		checkData(t, q, b, 16)
		for n := 0; ; n++ {
			if n == 20 {
				kill()
			}
			fill(b, n, 16, Read)
			err := q.IssueIO([]uint32{b.ID}, 0)
			if err == nil {
				err = q.WaitCQE(bound(t), b.ID)
			}
			if err == nil {
				checkData(t, q, b, 16)
				continue
			}
			if !errors.Is(err, ErrGone) && !errors.Is(err, ErrIO) || n < 20 {
				t.Fatalf("round %d: %v", n, err)
			}
			if errors.Is(err, ErrGone) {
				break
			}
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		if left := held(t); left != "" {
			t.Errorf("left over:\n%s", left)
		}
	})
}

// TestMemoryAfterClose: once Close has returned nobody writes to the data memory,
// whatever was under way.
func TestMemoryAfterClose(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		f := testFile(t, os.O_RDONLY)
		for round := range 12 {
			s, err := Serve(Options{Depth: 4, NumIOCTX: 128, Files: []*os.File{f}, DataBytes: 512 * blockBytes, Engine: engine})
			if err != nil {
				t.Fatal(err)
			}
			q := s.Queue()
			q.StartDevice()
			for _, b := range get(t, q, 4, nil) {
				for i := range b.Ctx {
					b.Ctx[i] = IOCTX{Address: uint64(int(b.ID)*128+i) * blockBytes, Length: blockBytes, Offset: uint64(i%fileBlocks) * blockBytes, Bytes: blockBytes}
				}
				b.Set(Read, len(b.Ctx))
				issue(t, q, 0, b.ID)
			}
			if err := waitUntil(t, func() bool { return q.r.slots[round%4].rings.sqHead.Load() > 0 }); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(bound(t)); err != nil {
				t.Fatal(err)
			}
			for i := range q.Data() {
				q.Data()[i] = 0xaa
			}
			time.Sleep(5 * time.Millisecond)
			for i, c := range q.Data() {
				if c != 0xaa {
					t.Fatalf("byte %d was written to after Close", i)
				}
			}
			if err := q.Close(); err != nil {
				t.Error(err)
			}
			<-s.Done()
		}
	})
}

// TestDoorman: the kernel's thread is woken for IOCBs that are issued, and for
// events that come, while it sleeps.
func TestDoorman(t *testing.T) {
	needUring(t)
	q := initQueue(t, EngineUring, Options{Device: small, Files: []*os.File{testFile(t, os.O_RDONLY)}, Idle: time.Millisecond})
	asleep := func() {
		t.Helper()
		if err := waitUntil(t, func() bool { return q.r.slots[0].rings.sqFlags.Load()&flagNeedWake != 0 }); err != nil {
			t.Fatal(err)
		}
	}
	for round := range uint32(10) {
		b := get(t, q, 1, &Event{1, round + 1})[0]
		fill(b, int(round), 16, Read)
		asleep()
		issue(t, q, 0, b.ID)
		if round%2 == 0 {
			time.Sleep(10 * time.Millisecond) // woken for what was issued, it falls asleep once more
			asleep()
		}
		q.Word(1).Store(round + 1)
		if err := q.WaitCQE(bound(t), b.ID); err != nil {
			t.Fatal(err)
		}
		checkData(t, q, b, 16)
		if err := q.Release(b.ID); err != nil {
			t.Fatal(err)
		}
	}
}
