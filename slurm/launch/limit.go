package launch

import (
	"context"
	"os"
	"syscall"
	"time"

	"cascadekv/slurm/job"
)

const (
	// limitPoll is how often slurmctld is asked for the end of the job, which may be
	// moved, and limitTimeout how long it may take to answer.
	limitPoll    = time.Minute
	limitTimeout = 20 * time.Second
)

// limit is the end that Slurm has set for a job.
type limit struct {
	ask    func(ctx context.Context) (time.Time, error) // zero: there is none
	notice time.Duration                                // from the engine's notice to the end
	began  time.Time                                    // of the launch
}

// limitOf is that of this job; nil outside Slurm.
func (p *Plan) limitOf(s Session) *limit {
	if p.Place.Job == nil {
		return nil
	}
	notice := s.Notice
	if notice <= 0 {
		notice = s.Grace + p.Config.Deadline.Drain.Std() + endMargin
	}
	return &limit{notice: notice, began: time.Now(), ask: func(ctx context.Context) (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, limitTimeout)
		defer cancel()
		state, err := job.Query(ctx, p.Place.Job, p.Env)
		return state.End, err
	}}
}

// await returns true when the end is so near that the engine must be asked to end now, for
// the ranks to drain in time, and false when ctx ends before. A job keeps half of its time
// for its work at least.
func (l *limit) await(ctx context.Context, progress func(format string, args ...any)) bool {
	var known time.Time
	failed := false
	for {
		end, err := l.ask(ctx)
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			if !failed {
				progress("the time limit is not known: %v; asking on", err)
			}
			failed, end = true, known // as far as is known it has not moved
		}
		wait := limitPoll
		if !end.IsZero() {
			notice := min(l.notice, end.Sub(l.began)/2)
			if left := time.Until(end) - notice; left <= 0 {
				progress("the time limit ends the job at %s: the engine is asked to end", clock(end))
				return true
			} else if left < wait {
				wait = left
			}
			if !end.Equal(known) {
				progress("the time limit ends the job at %s; %v before that the engine is asked to end, and the ranks drain",
					clock(end), notice.Round(time.Second))
			}
		}
		known = end
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false
		}
	}
}

func clock(t time.Time) string { return t.Format("2006-01-02 15:04:05") }

// signals are those of s, and SIGTERM when the time limit is near, until ctx ends.
func (p *Plan) signals(ctx context.Context, s Session, progress func(format string, args ...any)) <-chan os.Signal {
	l := p.limitOf(s)
	if l == nil {
		return s.Signals
	}
	all := make(chan os.Signal, cap(s.Signals)+1)
	pass := func(sig os.Signal) {
		select {
		case all <- sig:
		case <-ctx.Done():
		}
	}
	go func() {
		if l.await(ctx, progress) {
			pass(syscall.SIGTERM)
		}
	}()
	go func() {
		for {
			select {
			case sig := <-s.Signals:
				pass(sig)
			case <-ctx.Done():
				return
			}
		}
	}()
	return all
}
