package handover

import (
	"encoding/hex"
	"errors"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// example has something of everything.
func example() *State {
	return &State{
		PID: 7, Began: 1, From: "v1", Asked: 4, LastConn: 5, NextEvent: 6,
		Listeners: []Listener{{Unix, 10}, {TCP, 11}, {Admin, 12}},
		Claims:    []Claim{{4096, 100, 0xabcd, false}, {8192, 200, 0, true}, {4096, 100, 0xabcd, false}},
		Conns: []Conn{{
			ID: 4, FD: 13, Flags: Authed | SeenFixed, Proto: 3, DB: 2, Name: "n", Size: -1,
			Input: []byte("PING\r\n"), Descriptors: []int32{14}, Holds: 19,
			LastHeld: 9, Views: []View{{8, 0, "shm"}}, Stages: []Stage{{9, 1}}, Pins: []Pin{{"ns", "k", 2}, {"ns", "l", NoClaim}},
			LastRegion: 3, Regions: []Region{{3, 15, -1, 4096}, {2, 16, 17, 8192}},
			Jobs: []Job{
				{Number: 1, Status: []byte{1, 0}, Over: true},
				{Number: 2, Status: []byte{1, 0}, Region: 3, Next: 1, Flags: Store | Chain | Generated, Namespace: "ns", Parent: "p", Expires: 77,
					Keys: []string{"a", "b"}, ExtentsOfBlock: 1, Extents: []int64{0, 10, 10, 20}},
			},
		}, {ID: 5, FD: 18, Proto: 2, Holds: -1}},
		Leases: []Lease{{4, "ns", "k", 99}},
		Seeds:  []string{"h:1"},
		Arena:  Arena{20, "/a"},
	}
}

// golden is the example as docs/format.md lays it out.
const golden = "" +
	"43415343484e4431030000000ee34cc463020000000000000700000001000000000000000200000076310400000000000000050000000000" +
	"0000060000000000000003000000010a000000020b000000030c0000000300000000100000000000006400000000000000cdab0000000020" +
	"000000000000c800000000000000000000000100100000000000006400000000000000cdab0000000200000004000000000000000d000000" +
	"050302010000006effffffffffffffff0600000050494e470d0a010000000e00000013000000090000000000000001000000080000000000" +
	"0000000000000300000073686d0100000009000000000000000100000002000000020000006e73010000006b02000000020000006e730100" +
	"00006cffffffff03000000000000000200000003000000000000000f000000ffffffff001000000000000002000000000000001000000011" +
	"0000000020000000000000020000000100000000000000020000000100010000000000000000000000000000000000000000000000000000" +
	"00000000000000000000000000000002000000000000000200000001000003000000000000000100000013020000006e7301000000704d00" +
	"0000000000000200000001000000610100000062010000000400000000000000000000000a000000000000000a0000000000000014000000" +
	"000000000500000000000000120000000002000000000000000000000000000000000000000000ffffffff00000000000000000000000000" +
	"0000000000000000000000000000000000000000000000010000000400000000000000020000006e73010000006b63000000000000000100" +
	"000003000000683a3114000000020000002f61"

func TestEncoding(t *testing.T) {
	p := Encode(example())
	if got := hex.EncodeToString(p); got != golden {
		t.Errorf("encoded as\n%s\nwant\n%s", got, golden)
	}
	back, err := Decode(p)
	if err != nil || !reflect.DeepEqual(back, example()) {
		t.Errorf("decoded as %+v, %v", back, err)
	}
}

func TestDamage(t *testing.T) {
	good := Encode(example())
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x10
		if _, err := Decode(bad); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
			t.Fatalf("a flipped bit of byte %d: %v", i, err)
		}
		if _, err := Decode(good[:i]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("the first %d bytes: %v", i, err)
		}
	}
	bad := append([]byte(nil), good...)
	bad[8] = 1
	if _, err := Decode(bad); !errors.Is(err, ErrVersion) {
		t.Errorf("version 1: %v", err)
	}
}

// What no program would have written is refused although its checksum is right.
func TestSense(t *testing.T) {
	for name, spoil := range map[string]func(s *State){
		"standard output":        func(s *State) { s.Listeners[0].FD = 1 },
		"one descriptor for two": func(s *State) { s.Conns[1].FD = 13 },
		"arena of another":       func(s *State) { s.Arena.FD = 13 },
		"holds of another":       func(s *State) { s.Conns[1].Holds = 15 },
		"no kind":                func(s *State) { s.Listeners[0].Kind = 9 },
		"no protocol":            func(s *State) { s.Conns[0].Proto = 4 },
		"unknown flag":           func(s *State) { s.Conns[0].Flags = 1 << 6 },
		"no such claim":          func(s *State) { s.Conns[0].Views[0].Claim = 3 },
		"stage of a view":        func(s *State) { s.Conns[0].Stages[0].Claim = 0 },
		"claim of two":           func(s *State) { s.Conns[0].Pins[0].Claim = 0 },
		"negative claim":         func(s *State) { s.Claims[0].Offset = -1 },
		"endless claim":          func(s *State) { s.Claims[0].Offset, s.Claims[0].Size = 1<<62, 1<<62 },
		"unknown flag of a job":  func(s *State) { s.Conns[0].Jobs[1].Flags = knownJobFlags + 1 },
		"job without keys":       func(s *State) { s.Conns[0].Jobs[1].Keys = nil },
		"job with few extents":   func(s *State) { s.Conns[0].Jobs[1].Extents = []int64{0, 10} },
		"job past its end":       func(s *State) { s.Conns[0].Jobs[1].Next = 3 },
	} {
		s := example()
		spoil(s)
		if _, err := Decode(Encode(s)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(example())[headerSize:])
	f.Add(Encode(&State{})[headerSize:])
	f.Fuzz(func(t *testing.T, body []byte) {
		c := &codec{p: body, reads: true}
		s := &State{}
		c.value(reflect.ValueOf(s).Elem())
		if c.bad != "" || len(c.p) > 0 {
			return
		}
		if c.check(s); c.bad != "" {
			return
		}
		again, err := Decode(Encode(s))
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%+v became %+v, %v", s, again, err)
		}
	})
}

func TestPassAndTake(t *testing.T) {
	file := func() int {
		fd, err := unix.MemfdCreate("passed", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	closes := func(fd int) bool {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		return err == nil && flags&unix.FD_CLOEXEC != 0
	}
	a, b, h := file(), file(), file()
	s := &State{PID: uint32(os.Getpid()), Listeners: []Listener{{Unix, int32(a)}}, Conns: []Conn{{ID: 1, FD: int32(b), Proto: 2, Holds: int32(h)}}}
	fd, err := Write(s)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Pwrite(fd, []byte("x"), 30); err == nil {
		t.Errorf("%d bytes of a sealed state were changed", n)
	}
	undo, err := Pass(s, fd)
	if err != nil || closes(a) || closes(b) || closes(h) || closes(fd) {
		t.Fatalf("passed: %v", err)
	}
	undo()
	if !closes(a) || !closes(b) || !closes(h) || !closes(fd) {
		t.Fatal("what was not passed after all stays open across exec")
	}
	if _, err = Pass(s, fd); err != nil {
		t.Fatal(err)
	}
	back, err := Take(fd)
	if err != nil || !reflect.DeepEqual(back, s) {
		t.Errorf("taken: %+v, %v", back, err)
	}
	if !closes(a) || !closes(b) || !closes(h) {
		t.Error("descriptors would go on to further programs")
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
		t.Error("the memfd is left open")
	}
}

// A state for another process, or none at all, is refused, and nothing of it is
// left open.
func TestTakeOfNothing(t *testing.T) {
	other := &State{PID: uint32(os.Getpid()) + 1}
	fd, err := Write(other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(fd); !errors.Is(err, ErrDamaged) {
		t.Errorf("that of another process: %v", err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	if _, err := Take(pipe[0]); !errors.Is(err, ErrDamaged) {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := Take(pipe[0]); !errors.Is(err, ErrDamaged) {
		t.Errorf("nothing: %v", err)
	}
}
