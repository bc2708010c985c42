package gio

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestForbiddenEntries: both engines refuse entries that name what the client was
// not given, with the same errno, and serve those between them.
func TestForbiddenEntries(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		private, err := os.OpenFile(filepath.Join(t.TempDir(), "private"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer private.Close()
		s, err := Serve(Options{Depth: 1, NumIOCTX: 32, Files: []*os.File{testFile(t, os.O_RDONLY), testFile(t, os.O_RDWR)}, DataBytes: dataBytes, Engine: engine})
		if err != nil {
			t.Fatal(err)
		}
		defer closeServer(t, s)
		base := s.r.h.buffer[0].address
		good := submission{opcode: opReadFixed, flags: flagFixedFile, addr: base, len: blockBytes}
		var want []int32
		var n uint32
		slot := &s.r.slots[0]
		add := func(res int32, change func(e *submission)) {
			slot.sqes[n] = good
			change(&slot.sqes[n])
			slot.sqes[n].user = uint64(n)
			want = append(want, res)
			n++
		}
		refuse := func(errno unix.Errno, change func(e *submission)) {
			add(-int32(errno), change)
			add(blockBytes, func(*submission) {})
		}
		refuse(unix.EACCES, func(e *submission) { *e = submission{} })                                   // NOP
		refuse(unix.EACCES, func(e *submission) { e.opcode = 22 })                                       // READ
		refuse(unix.EACCES, func(e *submission) { e.opcode, e.flags = 18, 0 })                           // OPENAT
		refuse(unix.EACCES, func(e *submission) { e.flags, e.file = 0, int32(private.Fd()) })            // a descriptor of the server
		refuse(unix.EACCES, func(e *submission) { e.flags |= 1 << 4 })                                   // ASYNC
		refuse(unix.EBADF, func(e *submission) { e.file = 900 })                                         // not registered
		refuse(unix.EBADF, func(e *submission) { e.file = -1 })                                          //
		refuse(unix.EBADF, func(e *submission) { e.opcode = opWriteFixed })                              // opened to be read
		refuse(unix.EFAULT, func(e *submission) { e.buffer = 1 })                                        // not registered
		refuse(unix.EFAULT, func(e *submission) { e.addr = base - pageBytes })                           // before the buffer
		refuse(unix.EFAULT, func(e *submission) { e.addr = base + dataBytes - blockBytes + 512 })        // half behind it
		refuse(unix.EFAULT, func(e *submission) { e.addr = ^uint64(0) - 511 })                           // wraps
		refuse(unix.EFAULT, func(e *submission) { e.addr = uint64(uintptr(unsafe.Pointer(slot.iocb))) }) // of the server, elsewhere
		slot.rings.sqTail.Store(n)
		if err := waitUntil(t, func() bool { return slot.rings.cqTail.Load() == n }); err != nil {
			t.Fatalf("%d of %d completions: %v", slot.rings.cqTail.Load(), n, err)
		}
		for _, c := range slot.cqes[:n] {
			if c.res != want[c.user] {
				t.Errorf("entry %d: %d, want %d", c.user, c.res, want[c.user])
			}
		}
	})
}

// TestHostileClient: somebody writes anything, at any time, all over the region.
// The engine goes on, touches nothing but the data memory, and ends; and one that
// is opened afterwards works.
func TestHostileClient(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		f := testFile(t, os.O_RDONLY)
		fence := make([]byte, 1<<20)
		copy(fence, pattern(7, len(fence)))
		for seed := range uint64(6) {
			s, err := Serve(Options{Depth: 3, NumIOCTX: 8, Files: []*os.File{f}, DataBytes: dataBytes, Engine: engine, Idle: 5 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			vandalize(s.r, rand.New(rand.NewPCG(seed, 1)), addressOf(&fence[0]))
			closeServer(t, s)
		}
		if !bytes.Equal(fence, pattern(7, len(fence))) {
			t.Error("memory of the server was written to")
		}
		q := initQueue(t, engine, Options{Device: small, Files: []*os.File{f}})
		b := get(t, q, 1, nil)[0]
		fill(b, 0, 16, Read)
		issue(t, q, 0, b.ID)
		if err := q.WaitCQE(bound(t), b.ID); err != nil {
			t.Fatal(err)
		}
		checkData(t, q, b, 16)
	})
}

// vandalize writes words that are plausible, extreme or random to places that
// matter or to any, and lets the engine see some of the states between.
func vandalize(r *region, rnd *rand.Rand, target uint64) {
	words := unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(r.mem))), len(r.mem)/4)
	entries := func(k int) *submission { s := &r.slots[rnd.IntN(len(r.slots))]; return &s.sqes[k%len(s.sqes)] }
	for n := range 30000 {
		switch rnd.IntN(6) {
		case 0:
			words[rnd.IntN(len(words))].Store(rnd.Uint32())
		case 1, 2: // an entry that is nearly right
			e := (*[16]atomic.Uint32)(unsafe.Pointer(entries(rnd.IntN(64))))
			addr := r.h.buffer[0].address + rnd.Uint64N(2*dataBytes)
			if rnd.IntN(2) == 0 {
				addr = target + rnd.Uint64N(1<<19)
			}
			e[4].Store(uint32(addr))
			e[5].Store(uint32(addr >> 32))
			e[6].Store(rnd.Uint32N(4 * dataBytes))
			e[7].Store(0)
			e[1].Store(rnd.Uint32N(3))
			e[10].Store(rnd.Uint32N(2))
			e[2].Store(rnd.Uint32N(fileBlocks) * 4096)
			e[3].Store(0)
			e[0].Store(uint32(opReadFixed+rnd.IntN(2)) | flagFixedFile<<8)
		case 3:
			s := r.slots[rnd.IntN(len(r.slots))].rings
			[]*atomic.Uint32{&s.sqHead, &s.sqTail, &s.cqHead, &s.cqTail}[rnd.IntN(4)].Store(rnd.Uint32() >> rnd.IntN(32))
		case 4:
			r.slots[rnd.IntN(len(r.slots))].rings.sqTail.Add(1 + rnd.Uint32N(9))
		case 5:
			r.h.sqTail.Add(1)
		}
		if n%500 == 0 {
			time.Sleep(500 * time.Microsecond)
		}
	}
}

// TestHeaderChanges: what the header says counts when the region is mapped, and
// not what somebody writes there later.
func TestHeaderChanges(t *testing.T) {
	q := initQueue(t, EngineUser, Options{Device: small, Files: []*os.File{testFile(t, os.O_RDONLY)}})
	b := get(t, q, 1, nil)[0]
	h := q.r.h
	h.buffers, h.filesCount, h.depth, h.numIOCTX = 1<<31, 1<<31, 1<<31, 1<<31
	h.slotBytes, h.buffer[1] = 0, buffer{0, 1 << 62}
	for _, change := range []func(c *IOCTX){func(c *IOCTX) { c.ID = 1 }, func(c *IOCTX) { c.File = 1 }} {
		fill(b, 0, 4, Read)
		change(&b.Ctx[3])
		if err := q.IssueIO([]uint32{b.ID}, 0); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", b.Ctx[3], err)
		}
	}
	fill(b, 0, 16, Read)
	issue(t, q, 0, b.ID)
	if err := q.WaitCQE(bound(t), b.ID); err != nil {
		t.Fatal(err)
	}
	checkData(t, q, b, 16)
}

// TestNoDisks: a block device is refused, by the name alone.
func TestNoDisks(t *testing.T) {
	names, err := filepath.Glob("/dev/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if st, err := os.Stat(name); err != nil || st.Mode()&os.ModeDevice == 0 || st.Mode()&os.ModeCharDevice != 0 {
			continue
		}
		f, err := os.OpenFile(name, unix.O_PATH, 0) // which opens no device
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if s, err := Serve(Options{Files: []*os.File{testFile(t, os.O_RDONLY), f}, DataBytes: dataBytes, Engine: EngineUser}); !errors.Is(err, ErrOption) {
			t.Errorf("%s: served %v, %v", name, s != nil, err)
		}
		if left := held(t); left != "" {
			t.Errorf("left over:\n%s", left)
		}
		return
	}
	t.Skip("no block device is in /dev")
}

// TestCutOff: a client maps no memory that a server, or whoever it has it from, can
// cut off under it.
func TestCutOff(t *testing.T) {
	s, err := Serve(Options{Depth: 1, NumIOCTX: 1, Files: []*os.File{testFile(t, os.O_RDONLY)}, DataBytes: dataBytes, Engine: EngineUser})
	if err != nil {
		t.Fatal(err)
	}
	defer closeServer(t, s)
	open, err := unix.MemfdCreate("cascade-gio-open", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(open)
	if err := unix.Ftruncate(open, dataBytes); err != nil {
		t.Fatal(err)
	}
	for _, fds := range [][]int{{s.ring.fd, open}, {open, s.data.fd}, {s.data.fd, s.ring.fd}, {s.ring.fd}} {
		f, c := pair(t)
		if err := unix.Sendmsg(int(f.Fd()), []byte{version}, unix.UnixRights(fds...), nil, 0); err != nil {
			t.Fatal(err)
		}
		before := held(t)
		if q, err := Attach(c, small); !errors.Is(err, ErrLayout) {
			t.Errorf("%v: attached %v, %v", fds, q != nil, err)
		}
		if after := held(t); after != before {
			t.Errorf("%v: left over:\n%s\nbefore:\n%s", fds, after, before)
		}
	}
}

// TestHandOverAndClose: a server that has ended hands nothing over, not even what
// has its descriptors' numbers by then.
func TestHandOverAndClose(t *testing.T) {
	for range 20 {
		s, err := Serve(Options{Depth: 1, NumIOCTX: 1, Files: []*os.File{testFile(t, os.O_RDONLY)}, DataBytes: pageBytes, Engine: EngineUser})
		if err != nil {
			t.Fatal(err)
		}
		f, c := pair(t)
		handed := make(chan error)
		go func() {
			for {
				if err := s.Send(c); err != nil {
					handed <- err
					return
				}
				p, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(2*4))
				_, n, _, _, err := unix.Recvmsg(int(f.Fd()), p, oob, unix.MSG_CMSG_CLOEXEC)
				if err != nil {
					handed <- err
					return
				}
				messages, err := unix.ParseSocketControlMessage(oob[:n])
				if err != nil {
					handed <- err
					return
				}
				fds, err := unix.ParseUnixRights(&messages[0])
				for _, fd := range fds {
					if _, sealed := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); sealed != nil {
						t.Errorf("what is no memfd was handed over: %v", sealed)
					}
					unix.Close(fd)
				}
				if err != nil {
					handed <- err
					return
				}
			}
		}()
		closeServer(t, s)
		if err := <-handed; !errors.Is(err, ErrGone) {
			t.Errorf("a server that has ended: %v", err)
		}
		if f, err := s.File(); !errors.Is(err, ErrGone) {
			t.Errorf("a server that has ended: %v, %v", f, err)
		}
	}
}

// FuzzEntry: an entry that passes touches nothing but its buffer, and is one that
// may pass.
func FuzzEntry(f *testing.F) {
	buffers := []buffer{{0x7f0000000000, BufferBytes}, {0x7f0040000000, 0x10000}}
	good := submission{opcode: opReadFixed, flags: flagFixedFile, addr: buffers[1].address, len: 0x10000, buffer: 1}
	for _, change := range []func(e *submission){func(*submission) {}, func(e *submission) { e.addr++ }, func(e *submission) { e.len = ^uint32(0) },
		func(e *submission) { e.addr = ^uint64(0) }, func(e *submission) { e.buffer = 2 }, func(e *submission) { e.offset = 1 << 63 }} {
		e := good
		change(&e)
		f.Add(bytes.Clone((*[64]byte)(unsafe.Pointer(&e))[:]))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var w [8]uint64
		copy((*[64]byte)(unsafe.Pointer(&w))[:], p)
		s := *(*submission)(unsafe.Pointer(&w))
		e, errno := check(w, buffers, 3)
		if errno != 0 {
			return
		}
		b := buffers[s.buffer]
		if s.opcode != opReadFixed && s.opcode != opWriteFixed || s.flags != flagFixedFile || e.write != (s.opcode == opWriteFixed) ||
			e.file < 0 || e.file > 2 || int32(e.file) != s.file || e.offset < 0 || e.user != s.user {
			t.Fatalf("%+v of %+v", e, s)
		}
		if s.addr < b.address || s.addr-b.address > b.bytes || uint64(s.len) > b.bytes-(s.addr-b.address) {
			t.Fatalf("%#x and %d bytes are not in buffer %d", s.addr, s.len, s.buffer)
		}
		if e.at != uint64(s.buffer)*BufferBytes+s.addr-b.address || e.n != uint64(s.len) || e.at+e.n > BufferBytes+0x10000 {
			t.Fatalf("%+v of %+v", e, s)
		}
	})
}

// FuzzHeader: a header that passes describes a region within its memory.
func FuzzHeader(f *testing.F) {
	f.Add([]byte{}, 0x7000)
	f.Fuzz(func(t *testing.T, p []byte, n int) {
		h := header{magic: magic, version: version, depth: 2, numIOCTX: 4, slotBytes: 0x3000, sqesOffset: 0x1000, iocbOffset: 0x2000, bytes: 0x7000}
		copy((*[64]byte)(unsafe.Pointer(&h))[8:], p)
		g, ok := geometryOf(&h, n)
		if ok && (g.bytes() != n || g.depth < 1 || g.depth > MaxDepth || g.numIOCTX < 1 || g.numIOCTX > MaxIOCTX || g.numIOCTX&(g.numIOCTX-1) != 0) {
			t.Fatalf("%+v of %d bytes", g, n)
		}
	})
}
