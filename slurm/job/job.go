package job

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"cascadekv/slurm/hostlist"
)

// Errors of Read, for errors.Is.
var (
	ErrOutside     = errors.New("job: this process is in no Slurm job: SLURM_JOB_ID is not set")
	ErrEnvironment = errors.New("job: a variable of Slurm has another form than Slurm gives it")
)

// Job is the job that a process is in, as it was when the process started.
type Job struct {
	ID         int
	Node       string   // Slurm's name of this node; "" where this node is none of the job's, as under salloc
	Nodes      []string // of all components, in Slurm's order
	Tasks      int      // that were asked for; 0: not said
	Memory     int64    // bytes of this node that the job may use; 0: all of it, or not known
	Restarts   int      // how often it was requeued
	End        time.Time
	Array      *Array
	Components []Component // of a heterogeneous job, else nil
	Step       *Step       // nil in a batch script
}

// Array is the place of a job in an array of jobs.
type Array struct {
	Job  int // id of the array
	Task int
}

// Component is a part of a heterogeneous job.
type Component struct {
	Job    int // id of its own
	Nodes  []string
	Memory int64 // as of Job, of one of its nodes; 0 also where it depends on their CPUs
}

// Step is what srun started this process in.
type Step struct {
	ID    int
	Nodes []string // which may be fewer than the job's
	Tasks int
	Rank  int // of this process, below Tasks
	Local int // its number on this node
}

// maxComponents is Slurm's own limit of a heterogeneous job.
const maxComponents = 128

// Read returns the job that the variables describe. getenv is os.Getenv. Errors are
// ErrOutside and ErrEnvironment.
func Read(getenv func(string) string) (*Job, error) {
	v := variables{get: getenv}
	if getenv("SLURM_JOB_ID") == "" {
		return nil, ErrOutside
	}
	j := &Job{
		ID: v.number("SLURM_JOB_ID"), Node: getenv("SLURMD_NODENAME"), Tasks: v.number("SLURM_NTASKS"),
		Restarts: v.number("SLURM_RESTART_COUNT"), Memory: v.memory(""),
	}
	if seconds := v.number("SLURM_JOB_END_TIME"); seconds > 0 { // Slurm 23.02 and later
		j.End = time.Unix(int64(seconds), 0)
	}
	if getenv("SLURM_ARRAY_JOB_ID") != "" {
		j.Array = &Array{Job: v.number("SLURM_ARRAY_JOB_ID"), Task: v.number("SLURM_ARRAY_TASK_ID")}
	}
	if !v.components(j) {
		j.Nodes = v.hosts("SLURM_JOB_NODELIST", "SLURM_NODELIST")
	}
	j.Step = v.step()
	if v.err != nil {
		return nil, v.err
	}
	return j, nil
}

// variables reads Slurm's variables and keeps the first error.
type variables struct {
	get func(string) string
	err error
}

func (v *variables) fail(name, problem string) {
	if v.err == nil {
		v.err = fmt.Errorf("%w: %s=%q: %s", ErrEnvironment, name, v.get(name), problem)
	}
}

// number reads a variable with a number; 0 for one that is not set.
func (v *variables) number(name string) int {
	text := v.get(name)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		v.fail(name, "it is no number")
		return 0
	}
	return n
}

// hosts reads the first variable of these that is set.
func (v *variables) hosts(names ...string) []string {
	for _, name := range names {
		if v.get(name) == "" {
			continue
		}
		hosts, err := hostlist.Expand(v.get(name))
		if err != nil {
			v.fail(name, err.Error())
		}
		return hosts
	}
	return nil
}

// memory reads what the job may use of this node, in bytes. suffix is that of the
// variables of a component.
func (v *variables) memory(suffix string) int64 {
	if bytes := v.perNode(suffix); bytes > 0 {
		return bytes
	}
	perCPU, cpus := int64(v.number("SLURM_MEM_PER_CPU"+suffix)), int64(v.number("SLURM_CPUS_ON_NODE"))
	if cpus > 0 && perCPU > mostMiB/cpus {
		v.fail("SLURM_MEM_PER_CPU"+suffix, "it is too large")
		return 0
	}
	return perCPU * cpus << 20
}

// mostMiB is as many as can be counted in bytes.
const mostMiB = math.MaxInt64 >> 20

// perNode reads what the job may use of each node, where it was asked for so.
func (v *variables) perNode(suffix string) int64 {
	mib := int64(v.number("SLURM_MEM_PER_NODE" + suffix))
	if mib > mostMiB {
		v.fail("SLURM_MEM_PER_NODE"+suffix, "it is too large")
		return 0
	}
	return mib << 20
}

// components reads the parts of a heterogeneous job; false where it is none. Until
// Slurm 20.02 they were called packs. A variable without a number is that of the
// first component, whatever this process belongs to; srun sets the numbered ones of
// component 0 in jobs that are not heterogeneous too.
func (v *variables) components(j *Job) bool {
	for _, kind := range []string{"HET", "PACK"} {
		size := v.number("SLURM_" + kind + "_SIZE")
		if size == 0 {
			continue
		}
		if size > maxComponents {
			v.fail("SLURM_"+kind+"_SIZE", "it is too large")
			return true
		}
		for i := range size {
			suffix := fmt.Sprintf("_%s_GROUP_%d", kind, i)
			c := Component{Job: v.number("SLURM_JOB_ID" + suffix), Nodes: v.hosts("SLURM_JOB_NODELIST" + suffix)}
			j.Nodes = append(j.Nodes, c.Nodes...)
			if slices.Contains(c.Nodes, j.Node) {
				c.Memory = v.memory(suffix)
				j.Memory = c.Memory
			} else {
				c.Memory = v.perNode(suffix)
			}
			j.Components = append(j.Components, c)
		}
		return true
	}
	return false
}

// noStep is the least number that stands for a batch script, or what else Slurm
// counts as a step without an srun.
const noStep = 0xfffffff0

// step reads the step of this process; nil for a batch script, whose SLURM_PROCID is
// no rank.
func (v *variables) step() *Step {
	if v.get("SLURM_STEP_ID") == "" {
		return nil
	}
	s := &Step{
		ID: v.number("SLURM_STEP_ID"), Nodes: v.hosts("SLURM_STEP_NODELIST"), Tasks: v.number("SLURM_STEP_NUM_TASKS"),
		Rank: v.number("SLURM_PROCID"), Local: v.number("SLURM_LOCALID"),
	}
	if s.ID >= noStep {
		return nil
	}
	if s.Rank >= s.Tasks {
		v.fail("SLURM_PROCID", fmt.Sprintf("the step has %d tasks", s.Tasks))
	}
	return s
}

// Name is how scontrol and scancel call the job: its id, or array_task.
func (j *Job) Name() string {
	if j.Array != nil {
		return fmt.Sprintf("%d_%d", j.Array.Job, j.Array.Task)
	}
	return strconv.Itoa(j.ID)
}
