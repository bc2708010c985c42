package transfer

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/direct"
	"cascadekv/gpu/gio"
)

// BenchmarkWaitingJobs reports what part of a core jobs take that wait for their words, each for one of 32, beside what a ring takes without jobs.
func BenchmarkWaitingJobs(b *testing.B) {
	for _, jobs := range []int{0, 32, 1000} {
		b.Run(map[int]string{0: "none", 32: "32", 1000: "1000"}[jobs], func(b *testing.B) {
			r := newRingRig(b, direct.Options{Engine: gio.EngineUser}, nil)
			r.attach(true)
			for job := range jobs {
				r.put(Options{Job: int64(job), After: After{1 + job%32, 1}}, 0, job%ringBlocks)
			}
			if jobs > 0 {
				r.awaitJobs(jobs)
			}
			time.Sleep(200 * time.Millisecond)
			before, began := cpu(b), time.Now()
			for b.Loop() {
				time.Sleep(time.Second)
			}
			b.ReportMetric(100*float64(cpu(b)-before)/float64(time.Since(began)), "%core")
		})
	}
}

// cpu is what this process has taken.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
