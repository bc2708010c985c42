package netio

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The poller sleeps shortly while something comes now and then, and for long afterwards: see
// Poller.sleep.
func TestSleepsAreShortWhileEventsCome(t *testing.T) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(epoll)
	p, events := &Poller{epoll: epoll}, make([]unix.EpollEvent, 1)
	for i := range shortSleeps {
		if n, err := p.sleep(events); n != 0 || err != nil || p.vain != i+1 {
			t.Fatalf("sleep %d: %d events, %v, %d in vain", i, n, err, p.vain)
		}
	}
	event, err := unix.Eventfd(1, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, event, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(event)}); err != nil {
		t.Fatal(err)
	}
	if n, err := p.sleep(events); n != 1 || err != nil || p.vain != 0 {
		t.Errorf("%d events, %v; %d sleeps in vain since", n, err, p.vain)
	}
}
