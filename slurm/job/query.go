package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"cascadekv/slurm/hostlist"
)

// ErrQuery means that scontrol gave no answer about a job, or one that is not
// understood.
var ErrQuery = errors.New("job: scontrol did not describe the job")

// State is what slurmctld knows of a job now.
type State struct {
	State    string    // such as "RUNNING"
	End      time.Time // at which the time limit ends it; zero: there is none
	Nodes    []string  // of this component; a job may have lost some
	Restarts int
}

// queryDelay is how long scontrol may take to end when it was ended.
const queryDelay = time.Second

// Query asks slurmctld for the state of j. env is the environment of scontrol, as of
// os.Environ. Its deadline is that of ctx; errors are ErrQuery.
func Query(ctx context.Context, j *Job, env []string) (State, error) {
	cmd := exec.CommandContext(ctx, "scontrol", "show", "job", j.Name())
	// The times as seconds: those of a clock are ambiguous when it is set back.
	cmd.Env = append(env[:len(env):len(env)], "SLURM_TIME_FORMAT=%s", "LC_ALL=C")
	cmd.WaitDelay = queryDelay
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return State{}, fmt.Errorf("%w: scontrol show job %s: %w: %s", ErrQuery, j.Name(), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return parseState(string(out), j.ID)
}

// parseState reads the record of a job among those that scontrol printed: of an
// array or a heterogeneous job there may be several.
func parseState(text string, id int) (State, error) {
	for record := range strings.SplitSeq(text, "\n\n") {
		head, lines, _ := strings.Cut(strings.TrimLeft(record, "\n"), "\n")
		number, _, _ := strings.Cut(strings.TrimPrefix(head, "JobId="), " ")
		if n, err := strconv.Atoi(number); err != nil || n != id {
			continue
		}
		// The first line has the name that the user chose, which may look like other
		// values; lines with other texts of the user come after those that are read.
		values := map[string]string{}
		for field := range strings.FieldsSeq(lines) {
			key, value, _ := strings.Cut(field, "=")
			if _, there := values[key]; !there {
				values[key] = value
			}
		}
		return newState(values)
	}
	return State{}, fmt.Errorf("%w: job %d is not in its answer", ErrQuery, id)
}

func newState(values map[string]string) (s State, err error) {
	fail := func(key string) (State, error) {
		return State{}, fmt.Errorf("%w: %s=%q", ErrQuery, key, values[key])
	}
	if s.State = values["JobState"]; s.State == "" {
		return fail("JobState")
	}
	if s.Restarts, err = strconv.Atoi(values["Restarts"]); err != nil {
		return fail("Restarts")
	}
	if end := values["EndTime"]; end != "Unknown" { // without a limit, or before the start
		seconds, err := strconv.ParseInt(end, 10, 64)
		if err != nil {
			return fail("EndTime")
		}
		s.End = time.Unix(seconds, 0)
	}
	if list := values["NodeList"]; list != "" && list != "(null)" { // it waits for nodes
		if s.Nodes, err = hostlist.Expand(list); err != nil {
			return State{}, fmt.Errorf("%w: NodeList: %w", ErrQuery, err)
		}
	}
	return s, nil
}
