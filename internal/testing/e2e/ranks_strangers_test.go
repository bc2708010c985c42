package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestStrangersBesideRanks floods both ports of a rank with what somebody without
// the secret can send. Ranks go on reading from each other, another one comes in,
// and the rank takes no memory and few lines for the strangers.
func TestStrangersBesideRanks(t *testing.T) {
	j := startJob(t, 2, "64MiB", false)
	first := j.ranks[0]
	addrs := joinedAddr.FindStringSubmatch(first.stderr.String())
	if addrs == nil {
		t.Fatal("no line says what rank 0 listens on")
	}
	before, lines := anonymous(t, first), strings.Count(first.stderr.String(), "\n")
	stop := make(chan struct{})
	var flood sync.WaitGroup
	for _, stranger := range []func(stop chan struct{}){
		func(stop chan struct{}) { knock(stop, addrs[1], nil) },
		func(stop chan struct{}) { knock(stop, addrs[1], []byte("CASCADEF\x02\x00half")) },
		func(stop chan struct{}) { knock(stop, addrs[2], nil) },
		func(stop chan struct{}) { announce(stop, addrs[2]) },
		func(stop chan struct{}) { announce(stop, addrs[2]) },
		func(stop chan struct{}) { packets(t, stop, addrs[2]) },
	} {
		flood.Go(func() { stranger(stop) })
	}
	end := sync.OnceFunc(func() {
		close(stop)
		flood.Wait()
	})
	defer end()
	clients := j.clients()
	for i := range 5 {
		m := marks{fmt.Sprintf("flood%d", i), 40}
		m.put(t, clients[0])
		m.everywhere(t, clients[1])
	}
	hits := j.hitsOf("remote")
	j.add(2)
	j.agree(3)
	m := marks{"flood0", 40}
	m.everywhere(t, j.ranks[2].dial(t))
	if n := j.hitsOf("remote"); hits < 5*40 || n < hits+40 {
		t.Errorf("%d blocks came from other ranks, then %d; want 200 and 40 more", hits, n)
	}
	end()
	if more := anonymous(t, first) - before; more > 48<<20 {
		t.Errorf("rank 0 took %d MiB more of memory", more>>20)
	}
	if n := strings.Count(first.stderr.String(), "\n") - lines; n > 200 {
		t.Errorf("%d lines about strangers", n)
	}
	j.agree(3)
}

// each4ms calls f about 250 times a second.
func each4ms(stop chan struct{}, f func()) {
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			f()
		}
	}
}

// knock opens connections, sends a few bytes on each and leaves the last 500 open.
func knock(stop chan struct{}, addr string, says []byte) {
	var open []net.Conn
	each4ms(stop, func() {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return // the queue of the kernel is full
		}
		_, _ = conn.Write(says) // it may be turned away already
		if open = append(open, conn); len(open) > 500 {
			_ = open[0].Close()
			open = open[1:]
		}
	})
	for _, conn := range open {
		_ = conn.Close()
	}
}

// announced is the beginning of a gossip message of 20 MiB.
func announced() []byte {
	const label = "cascade/cascade"
	b := append([]byte{244, byte(len(label))}, label...)
	return binary.BigEndian.AppendUint32(append(b, 10), 20<<20)
}

// announce sends 20 MiB to gossip, as far as it is read.
func announce(stop chan struct{}, addr string) {
	piece := make([]byte, 1<<16)
	each4ms(stop, func() {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return // the queue of the kernel is full
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, err = conn.Write(announced())
		for sent := 0; err == nil && sent < 20<<20; sent += len(piece) {
			_, err = conn.Write(piece)
		}
	})
}

// packets sends what is no packet of a member.
func packets(t *testing.T, stop chan struct{}, addr string) {
	conn, err := net.Dial("udp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	each4ms(stop, func() {
		_, _ = conn.Write(announced())
		_, _ = conn.Write([]byte("noise"))
	})
}

// anonymous is the memory of a rank that is neither a file nor shared, in bytes.
func anonymous(t *testing.T, r *rank) (n int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no RssAnon in /proc/PID/status")
	return 0
}
