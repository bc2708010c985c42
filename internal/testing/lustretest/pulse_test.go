package lustretest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// beat is how often the program pulse wakes up.
const beat = 20 * time.Millisecond

// span is a time in nanoseconds of the guest's monotonic clock, which all of
// its processes share.
type span struct{ from, to int64 }

func monotonic() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0 // every kernel has this clock
	}
	return ts.Nano()
}

// runPulse notes when it was not woken in time, until its input ends: then the
// machine as a whole stood still, or was busy. It touches no file, so that
// nothing a file system does delays it.
func runPulse([]string) error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	for {
		due := monotonic() + int64(beat)
		time.Sleep(beat)
		if woken := monotonic(); woken-due > int64(beat)/2 {
			fmt.Println(due, woken)
		}
		select {
		case err := <-ended:
			return err
		default:
		}
	}
}

// pulse takes what the guest itself delays out of the account of a storm: by
// the word of a process of its own, which a thread that hangs in the storm's
// process cannot hold up.
type pulse struct {
	program *exec.Cmd
	stop    io.Closer
	said    bytes.Buffer

	mu   sync.Mutex
	late []span // from a deadline to its answer
}

func startPulse() (*pulse, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &pulse{program: exec.Command(self)}
	p.program.Env = append(os.Environ(), programVariable+"=pulse")
	p.program.Stdout, p.program.Stderr = &p.said, os.Stderr
	if p.stop, err = p.program.StdinPipe(); err != nil {
		return nil, err
	}
	return p, p.program.Start()
}

// answered notes an answer that came some time after its deadline, just now.
func (p *pulse) answered(late time.Duration) {
	to := monotonic()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = append(p.late, span{to - int64(late), to})
}

// end stops the program and returns how long the guest stood still in all, and
// the longest times, two at most, that answers came after their deadlines while it did not.
func (p *pulse) end() (stood time.Duration, overdue []time.Duration, err error) {
	if err := errors.Join(p.stop.Close(), p.program.Wait()); err != nil {
		return 0, nil, fmt.Errorf("pulse: %w", err)
	}
	var still []span
	for {
		var s span
		if _, err := fmt.Fscanln(&p.said, &s.from, &s.to); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return 0, nil, fmt.Errorf("what pulse said: %w", err)
		}
		still = append(still, s)
		stood += time.Duration(s.to - s.from)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	overdue = make([]time.Duration, 2, 2+len(p.late))
	for _, late := range p.late {
		overdue = append(overdue, late.without(still))
	}
	slices.SortFunc(overdue, func(a, b time.Duration) int { return cmp.Compare(b, a) })
	return stood, overdue[:2], nil
}

// without is how long a span is but for what it shares with others.
func (s span) without(others []span) time.Duration {
	rest := s.to - s.from
	for _, o := range others {
		rest -= max(0, min(s.to, o.to)-max(s.from, o.from))
	}
	return time.Duration(rest)
}

// overdueAtMost is how long after its deadline an answer may come. A daemon
// gives the store 4.5 s for a command, and clients wait 5 s for the answer. One
// may come later, as long as it does not hang: the machine has more to do than
// pulse sees.
const overdueAtMost, overdueOnce = 500 * time.Millisecond, 2 * time.Second

// inTime says why the answers of a storm were not; "" when they were.
func (s *state) inTime() string {
	once, twice := time.Duration(s.Overdue)*time.Millisecond, time.Duration(s.OverdueTwice)*time.Millisecond
	if twice > overdueAtMost || once > overdueOnce {
		return fmt.Sprintf("answers came %v and %v after their deadlines, %v at most is allowed, and once %v; the guest's own delays are not counted, %d ms in all",
			once, twice, overdueAtMost, overdueOnce, s.Stood)
	}
	return ""
}

func TestPulse(t *testing.T) {
	late := span{100, 200}
	for _, c := range []struct {
		still []span
		want  time.Duration
	}{
		{nil, 100},
		{[]span{{0, 100}, {200, 300}}, 100},
		{[]span{{90, 130}, {150, 160}, {190, 250}}, 50},
		{[]span{{0, 1000}}, 0},
	} {
		if got := late.without(c.still); got != c.want {
			t.Errorf("%v: %v", c.still, got)
		}
	}
	p, err := startPulse()
	if err != nil {
		t.Fatal(err)
	}
	for range 10 { // the first come before the program has begun
		for _, signal := range []os.Signal{unix.SIGSTOP, unix.SIGCONT} {
			if err := p.program.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * beat)
		}
	}
	p.answered(time.Hour)
	stood, overdue, err := p.end()
	if err != nil || stood <= 0 || overdue[0] >= time.Hour || overdue[0]+stood < time.Hour || overdue[1] != 0 {
		t.Errorf("stood still for %v, an answer an hour late is overdue by %v: %v", stood, overdue, err)
	}
}
