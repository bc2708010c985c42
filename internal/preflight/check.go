package preflight

import (
	"context"
	"fmt"
	"time"

	"cascadekv/internal/config"
)

// Verdict is the outcome of a check.
type Verdict string

// Verdicts.
const (
	OK   Verdict = "ok"   // as it should be, or a plain fact
	Warn Verdict = "warn" // works, but not as well as it could
	Fail Verdict = "fail" // a rank will not work, or with less than is configured
)

// Check is one question about the node with its answer.
type Check struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Remedy  string  `json:"remedy,omitempty"`
	NoStart bool    `json:"-"` // a rank does not start
}

// Okay returns a check that found nothing wrong.
func Okay(name, detail string, args ...any) Check {
	return Check{Name: name, Verdict: OK, Detail: fmt.Sprintf(detail, args...)}
}

// Warning returns a check that found something that could be better.
func Warning(name, remedy, detail string, args ...any) Check {
	return Check{Name: name, Verdict: Warn, Detail: fmt.Sprintf(detail, args...), Remedy: remedy}
}

// Failure returns a check that failed.
func Failure(name, remedy, detail string, args ...any) Check {
	return Check{Name: name, Verdict: Fail, Detail: fmt.Sprintf(detail, args...), Remedy: remedy}
}

func noStart(c Check) Check {
	c.NoStart = true
	return c
}

// question is one check of the list.
type question struct {
	name  string
	start bool // a rank asks it when it starts
	ask   func(Machine, *config.Config) Check
}

var questions = []question{
	{"kernel", false, func(m Machine, _ *config.Config) Check { return m.kernel() }},
	{"shared memory", true, Machine.sharedMemory},
	{"huge pages", false, Machine.hugePages}, // takes the space of one for a moment
	{"memory", true, Machine.memory},
	{"open files", true, Machine.openFiles},
	{"locked memory", false, func(m Machine, _ *config.Config) Check { return m.lockedMemory() }},
	{"socket", true, func(m Machine, c *config.Config) Check { return m.socketDir(c.Socket) }},
	{"lustre", false, Machine.lustre}, // its servers may not answer
	{"quota", false, Machine.quota},   // likewise
	{"io_uring", false, Machine.ring},
	{"clock", false, Machine.clock},
	{"gpu", false, func(m Machine, _ *config.Config) Check { return m.gpu() }},
	{"nvme", false, Machine.nvme}, // a disk may not answer
	{"slingshot", false, func(m Machine, _ *config.Config) Check { return m.slingshot() }},
	{"fabric address", false, Machine.fabric},
	{"slurm", false, func(m Machine, _ *config.Config) Check { return m.slurm() }},
	{"mpi", false, func(m Machine, _ *config.Config) Check { return m.mpi() }},
}

// All asks everything, for however long that takes.
func (m Machine) All(c *config.Config) []Check {
	var checks []Check
	for _, q := range questions {
		checks = append(checks, q.ask(m, c))
	}
	return checks
}

// startPatience bounds the checks of a start together.
const startPatience = 100 * time.Millisecond

// Start asks what a rank asks when it starts, and waits at most 100 ms for the
// answers: a check without one is a warning.
func (m Machine) Start(c *config.Config) []Check { return m.within(c, startQuestions(), startPatience) }

func startQuestions() (asked []question) {
	for _, q := range questions {
		if q.start {
			asked = append(asked, q)
		}
	}
	return asked
}

// within asks everything at once and waits for the answers so long together. A
// check that hangs leaves its goroutine behind.
func (m Machine) within(c *config.Config, asked []question, patience time.Duration) []Check {
	answers := make([]chan Check, len(asked))
	for i, q := range asked {
		answers[i] = make(chan Check, 1)
		own := *c
		go func() { answers[i] <- q.ask(m, &own) }()
	}
	over, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	var checks []Check
	for i, q := range asked {
		select {
		case found := <-answers[i]:
			checks = append(checks, found)
			continue
		case <-over.Done():
		}
		select {
		case found := <-answers[i]: // it came while another one was waited for
			checks = append(checks, found)
		default:
			checks = append(checks, Warning(q.name, "see whether a file system hangs: cascade doctor", "not answered within %v", patience))
		}
	}
	return checks
}
