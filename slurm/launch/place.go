package launch

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"cascadekv/slurm/hostlist"
	"cascadekv/slurm/job"
)

// Errors of Prepare, for errors.Is. They are mistakes of whoever asks.
var (
	ErrElsewhere = errors.New("launch: this machine is no node of the ranks: start it in a batch script, or on a node of the job with srun --overlap -N1 -n1")
	ErrNodes     = errors.New("launch: these nodes can not be used")
)

// Place is where ranks are to run.
type Place struct {
	Job   *job.Job // nil outside Slurm
	Nodes []string // one for each rank, in the order of their numbers
	Rank  int      // that of this node
}

// locate finds the place of ranks. nodes is a number, a list, or "" for all nodes of
// the job.
func locate(j *job.Job, nodes string) (p Place, err error) {
	p.Job = j
	if j == nil {
		if nodes != "" && nodes != "1" {
			return p, fmt.Errorf("%w: %s: outside Slurm there is this machine only", ErrNodes, nodes)
		}
		host, err := os.Hostname()
		p.Nodes = []string{host}
		return p, err
	}
	if p.Nodes, err = chooseNodes(j, nodes); err != nil {
		return p, err
	}
	if p.Rank = slices.Index(p.Nodes, j.Node); p.Rank < 0 {
		return p, fmt.Errorf("%w; the ranks' nodes are %s", ErrElsewhere, list(p.Nodes))
	}
	return p, nil
}

func chooseNodes(j *job.Job, nodes string) ([]string, error) {
	if nodes == "" {
		return j.Nodes, nil
	}
	if j.Components != nil {
		return nil, fmt.Errorf("%w: %s: the ranks of a heterogeneous job are on all its nodes: leave --nodes out", ErrNodes, nodes)
	}
	if n, err := strconv.Atoi(nodes); err == nil {
		if n < 1 || n > len(j.Nodes) {
			return nil, fmt.Errorf("%w: %d nodes of a job with %d", ErrNodes, n, len(j.Nodes))
		}
		return j.Nodes[:n], nil
	}
	asked, err := hostlist.Expand(nodes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNodes, err)
	}
	for _, node := range asked {
		if !slices.Contains(j.Nodes, node) {
			return nil, fmt.Errorf("%w: %s is none of the job's, %s", ErrNodes, node, list(j.Nodes))
		}
	}
	// Slurm numbers tasks in the order of the job's nodes, whatever that of the list.
	return slices.DeleteFunc(slices.Clone(j.Nodes), func(node string) bool { return !slices.Contains(asked, node) }), nil
}

// list writes nodes for a command line or a reader.
func list(nodes []string) string {
	text, err := hostlist.Compress(nodes)
	if err != nil {
		return strings.Join(nodes, ",") // names that Slurm itself would not take
	}
	return text
}

// jobIDs are those under which Slurm has the step of the ranks: one of each component.
func (p Place) jobIDs() (ids []string) {
	for _, c := range p.Job.Components {
		ids = append(ids, strconv.Itoa(c.Job))
	}
	if ids == nil {
		ids = []string{strconv.Itoa(p.Job.ID)}
	}
	return ids
}
