package launch

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"cascadekv/slurm/job"
)

// canRescue reports whether what killed ranks left can be written to lustre.
func (p *Plan) canRescue() bool { return p.Place.Job != nil && p.Config.Lustre.Dir != "" }

// rescue has what killed ranks left in /dev/shm written to lustre, and removed there: on each
// node that is left a rank starts once more, alone, when there is none any more, and ends.
// progress may be nil.
func (r *ranks) rescue(ctx context.Context, progress func(format string, args ...any)) error {
	p := r.plan
	if !p.canRescue() {
		return nil
	}
	limit := 2*p.Config.Deadline.Drain.Std() + 3*endMargin // of the rank that was, and of a start, a drain, an end
	if progress != nil {
		progress("what killed ranks left is written to %s, for %v at most", p.Config.Lustre.Dir, limit)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	left := p.left(ctx)
	var failed error
	for i, nodes := range p.groups() {
		nodes = slices.DeleteFunc(nodes, func(n string) bool { return !left(n) || !slices.Contains(p.Place.Nodes, n) })
		if len(nodes) > 0 {
			failed = errors.Join(failed, r.rescueOn(ctx, i, nodes))
		}
	}
	return failed
}

// left asks Slurm which nodes the job still has: srun starts nothing on one that it has lost.
// Where that is not known it has all.
func (p *Plan) left(ctx context.Context) func(node string) bool {
	if p.Place.Job.Components != nil {
		return func(string) bool { return true } // one answer has the nodes of one component
	}
	state, err := job.Query(ctx, p.Place.Job, p.Env)
	if err != nil || len(state.Nodes) == 0 {
		return func(string) bool { return true }
	}
	return func(node string) bool { return slices.Contains(state.Nodes, node) }
}

// groups are the nodes with ranks, of each component of a heterogeneous job.
func (p *Plan) groups() [][]string {
	if p.Place.Job.Components == nil {
		return [][]string{slices.Clone(p.Place.Nodes)}
	}
	var all [][]string
	for _, c := range p.Place.Job.Components {
		all = append(all, slices.Clone(c.Nodes))
	}
	return all
}

// rescueOn runs the step of a component.
func (r *ranks) rescueOn(ctx context.Context, component int, nodes []string) error {
	args := r.plan.rescueCommand(component, nodes)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = r.plan.Env, r.log, r.log, killedMargin
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // srun ends its step
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: what they left on %s is still there: %w; %s has the words, and cascade arena list shows it", ErrDrain, list(nodes), err, r.plan.Log)
	}
	return nil
}

// rescueCommand starts what the rank of each node was started with, to rescue. Its number is that which the
// rank had, and goes by the node.
func (p *Plan) rescueCommand(component int, nodes []string) []string {
	command := []string{"srun", "--overlap"}
	if p.Place.Job.Components != nil {
		command = append(command, "--het-group="+strconv.Itoa(component))
	}
	n := strconv.Itoa(len(nodes))
	command = append(append(command, "--nodes="+n, "--ntasks="+n, "--nodelist="+list(nodes), "--mpi=none"), stepFlags...)
	var script strings.Builder
	script.WriteString(`case "$SLURMD_NODENAME" in `)
	for _, node := range nodes {
		fmt.Fprintf(&script, "%s) r=%d ;; ", node, slices.Index(p.Place.Nodes, node))
	}
	script.WriteString(`*) exit 0 ;; esac; exec "$@" --rescue --rank "$r"`)
	command = append(command, "--job-name="+p.Name+"-rescue", "sh", "-c", script.String(), "sh")
	return append(command, p.rank...)
}
