package rawfd

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTake(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := Take(served)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("flags %#x, %v: reads do not block", flags, err)
	}
	if _, err := served.Write([]byte("x")); err == nil {
		t.Error("the connection is still open")
	}
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	var b [5]byte
	if n, err := unix.Read(fd, b[:]); n != 5 || err != nil || string(b[:]) != "hello" {
		t.Errorf("read %q, %v", b[:max(n, 0)], err)
	}
}

func TestTakeOfNoSocket(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	if fd, err := Take(a); err == nil || fd != -1 {
		t.Errorf("a pipe in memory has descriptor %d, %v", fd, err)
	}
	if _, err := a.Write([]byte("x")); err == nil {
		t.Error("the connection is still open")
	}
}
