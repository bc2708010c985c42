package fabricbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/dht/fabric/tcp"
)

// ErrNoNetwork says that two network namespaces can not be joined here.
var ErrNoNetwork = errors.New("bench: network namespaces can not be made here: run as root, with iproute2 and iperf3 installed")

// NetworkOptions choose what RunNetwork measures.
type NetworkOptions struct {
	Bytes    int                   // of a read
	Callers  int                   // reads at the same time
	Rounds   int                   // at least 1
	Progress func(done, total int) // may be nil
	Log      io.Writer             // may be nil
}

// NetworkResult is the outcome of RunNetwork. Rates are of 10⁹ bytes a second.
type NetworkResult struct {
	Machine    kit.Machine `json:"machine"`
	Bytes      int         `json:"bytes"`
	Callers    int         `json:"callers"`
	Streams    int         `json:"streams"` // of the fabric, and of iperf3
	ReadGBps   float64     `json:"read_gbps"`
	Iperf3GBps float64     `json:"iperf3_gbps"`
	Ratio      float64     `json:"ratio"` // median of the rounds'
	Ratios     []float64   `json:"ratios"`
	ReadCPU    float64     `json:"read_cpu_s_per_gb"` // of both sides
	Iperf3CPU  float64     `json:"iperf3_cpu_s_per_gb"`
}

// turn is how many bytes one measurement of ours moves, about; iperf3 measures a second.
const turn = 2 << 30

// RunNetwork measures reads of one rank from another in another network namespace,
// joined to its own by veth, and iperf3 over the same, alternating.
// Errors: kit.ErrBadOption, ErrNoNetwork, ErrWorld, ctx's.
func RunNetwork(ctx context.Context, o NetworkOptions) (*NetworkResult, error) {
	if o.Rounds < 1 || o.Bytes < 1 || o.Callers < 1 || o.Bytes*o.Callers > memoryBytes {
		return nil, fmt.Errorf("%w: %d rounds of reads of %d bytes by %d callers, who have %d", kit.ErrBadOption, o.Rounds, o.Bytes, o.Callers, memoryBytes)
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	n, err := newNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	defer n.remove()
	memory, err := os.MkdirTemp("/dev/shm", "cascade-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(memory)
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	k := &pair{log: o.Log}
	ours, err := k.start(ctx, slices.Concat(n.within(0), []string{own, RankVerb, memory, strconv.Itoa(memoryBytes), TCP, addressOf(0), addressOf(1), n.names[1]}))
	if err != nil {
		return nil, err
	}
	server := append(n.within(0), "iperf3", "-s")
	theirs, err := kit.Start("iperf3", io.Discard, exec.Command(server[0], server[1:]...))
	if err != nil {
		return nil, errors.Join(err, ours.quit())
	}
	res := &NetworkResult{Machine: kit.ReadMachine(), Bytes: o.Bytes, Callers: o.Callers, Streams: tcp.Streams}
	err = res.measure(ctx, o, n, ours)
	_ = theirs.Stop() // iperf3 says that it was interrupted
	return res, errors.Join(err, ours.quit())
}

func (res *NetworkResult) measure(ctx context.Context, o NetworkOptions, n *namespaces, ours *world) error {
	times := max(turn/o.Bytes, o.Callers)
	line := fmt.Sprintf("move %d %d %d %d", o.Bytes, times, memoryBytes/o.Bytes, o.Callers)
	var costs [2][]float64
	rates, err := kit.Turns(o.Rounds+1, 2, func(_, i int) (float64, error) {
		if i == 1 {
			rate, cost, err := n.iperf3(ctx, res.Streams)
			costs[i] = append(costs[i], cost)
			return rate, err
		}
		ns, err := ours.ask(ctx, line, 2)
		if err != nil {
			return 0, err
		}
		bytes := float64(o.Bytes) * float64(times)
		costs[i] = append(costs[i], ns[1]/bytes)
		return bytes / ns[0], nil
	}, kit.Progress(o.Rounds+1, o.Progress))
	if err != nil {
		return err
	}
	reads, iperf := rates[0][1:], rates[1][1:] // the first round warms up
	res.ReadGBps, res.Iperf3GBps = kit.Median(reads), kit.Median(iperf)
	res.Ratios, res.Ratio = kit.Ratios(reads, iperf)
	res.ReadCPU, res.Iperf3CPU = kit.Median(costs[0][1:]), kit.Median(costs[1][1:])
	return nil
}

// namespaces are two network namespaces with a cable between them.
type namespaces struct{ names [2]string }

func addressOf(i int) string { return fmt.Sprintf("10.199.0.%d", i+1) }

func newNamespaces(ctx context.Context) (*namespaces, error) {
	n := &namespaces{}
	for i := range n.names {
		n.names[i] = fmt.Sprintf("cascade-bench-%d-%d", os.Getpid(), i)
	}
	a, b := n.names[0], n.names[1]
	lines := []string{
		"netns add " + a, "netns add " + b,
		"-n " + a + " link add eth0 type veth peer name eth0 netns " + b,
	}
	for i, name := range n.names {
		lines = append(lines,
			"-n "+name+" addr add "+addressOf(i)+"/24 dev eth0",
			"-n "+name+" link set eth0 up", "-n "+name+" link set lo up")
	}
	for _, line := range lines {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			n.remove()
			return nil, fmt.Errorf("%w: ip %s: %w: %s", ErrNoNetwork, line, err, strings.TrimSpace(string(out)))
		}
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		n.remove()
		return nil, fmt.Errorf("%w: %w", ErrNoNetwork, err)
	}
	return n, nil
}

func (n *namespaces) remove() {
	for _, name := range n.names {
		_ = exec.Command("ip", "netns", "del", name).Run() // it may not be there
	}
}

// within is the beginning of a command line that runs in namespace i.
func (n *namespaces) within(i int) []string { return []string{"ip", "netns", "exec", n.names[i]} }

// iperf3 measures for a second what it sends to its server: the rate in GB/s, and the
// processor time of both of its ends in seconds a GB.
func (n *namespaces) iperf3(ctx context.Context, streams int) (rate, cost float64, err error) {
	line := append(n.within(1), "iperf3", "-J", "-t", "1", "-P", strconv.Itoa(streams), "-c", addressOf(0))
	var out []byte
	err = kit.Until(ctx, 10*time.Millisecond, patience, func() (bool, error) { // the server may not listen yet
		var err error
		out, err = exec.CommandContext(ctx, line[0], line[1:]...).Output()
		if err != nil && strings.Contains(string(out), "unable to connect") {
			return false, nil
		}
		return true, err
	})
	var report struct {
		End struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
			CPU struct {
				Host   float64 `json:"host_total"`
				Remote float64 `json:"remote_total"`
			} `json:"cpu_utilization_percent"`
		} `json:"end"`
	}
	if err == nil {
		err = json.Unmarshal(out, &report)
	}
	end := report.End
	if err != nil || end.Received.Bits == 0 {
		return 0, 0, fmt.Errorf("%w: iperf3: %w: %s", ErrWorld, err, out)
	}
	rate = end.Received.Bits / 8 / kit.Giga
	return rate, (end.CPU.Host + end.CPU.Remote) / 100 / rate, nil
}
