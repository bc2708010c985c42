package slackbench

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/slack"
)

// Model is a transformer, a GPU and disks, by which times are made up. Times are in
// seconds, rates in units a second.
type Model struct {
	Layers      int
	Params      float64 // of a layer
	Hidden      int     // heads times elements of a head
	KVBytes     int64   // of a token in a layer
	BlockTokens int     // of an engine block: a transfer is the keys, or the values, of one in a layer
	MaxTokens   int     // of a prompt, for the profile

	SMs       int
	Flops     float64   // that compute reaches
	Memory    float64   // bytes a second of device memory
	Overhead  float64   // of a layer besides its arithmetic
	Tile      int       // compute takes tokens in tiles of so many
	FreeSMs   int       // that a layer's compute leaves
	DecodeSMs int       // that a decode step leaves
	Ring      gio.Facts // of the GPU; default gio.H100

	ReadRate, WriteRate float64 // bytes a second of all disks
	LaunchTime          float64 // of one launch besides its transfers
	MixedLoss           float64 // share of the throughput that reads and writes at once lose
	Transfers           int     // of an IOCB
}

// Llama8B is Llama3-8B on an H100 with two Solidigm D7-PS1010, as far as Tutti
// states it: 25.9 GB/s of reads, 10 GB/s of writes, 60 % less when both are in flight
// (§3.3, §4.2.1), blocks of 64 tokens. The rest is chosen: 380 TFLOP/s, and 0.2 ms of a layer
// for what does not grow with tokens.
func Llama8B() Model {
	return Model{
		Layers: 32, Params: 218e6, Hidden: 4096, KVBytes: 4096, BlockTokens: 64, MaxTokens: 128 << 10,
		SMs: 132, Flops: 380e12, Memory: 3.35e12, Overhead: 200e-6, Tile: 128, FreeSMs: 12, DecodeSMs: 24,
		ReadRate: 25.9e9, WriteRate: 10e9, LaunchTime: 60e-6, MixedLoss: 0.6, Transfers: 64,
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// layer is how long a layer computes for input tokens behind prefix ones.
func (m *Model) layer(input, prefix int) float64 {
	n := float64((input + m.Tile - 1) / m.Tile * m.Tile)
	return m.Overhead + n*(2*m.Params+4*float64(m.Hidden)*(float64(prefix)+n/2))/m.Flops
}

// decode is how long a step of one sequence takes in all layers.
func (m *Model) decode(tokens int) float64 {
	return float64(m.Layers) * (m.Overhead/2 + (2*m.Params+float64(tokens)*float64(m.KVBytes))/m.Memory)
}

// TransferBytes is what one transfer moves: the keys, or the values, of a block in a layer.
func (m *Model) TransferBytes() int64 { return int64(m.BlockTokens) * m.KVBytes / 2 }

func (m *Model) iocbBytes() int64 { return int64(m.Transfers) * m.TransferBytes() }

// launch is how long n IOCBs take with nothing else in flight.
func (m *Model) launch(k slack.Kind, n int) float64 {
	rate := m.ReadRate
	if k == slack.Write {
		rate = m.WriteRate
	}
	return m.LaunchTime + float64(int64(n)*m.iocbBytes())/rate
}

// ring is what the GPU can set apart for I/O, and how many I/Os that has threads for.
func (m *Model) ring() (sms, ios int) {
	f := cmp.Or(m.Ring, gio.H100)
	return f.UnitSMs, f.NumIOCTX()
}

// launchSMs is what n IOCBs occupy: on an H100 two SMs for each 2,048 transfers, as Tutti has it.
func (m *Model) launchSMs(n int) int {
	sms, ios := m.ring()
	return sms * ((n*m.Transfers + ios - 1) / ios)
}

// Check returns what is wrong with a model.
func (m *Model) Check() error {
	for name, n := range map[string]int64{"layers": int64(m.Layers), "bytes of a token's keys and values": m.KVBytes, "tokens of a block": int64(m.BlockTokens),
		"SMs": int64(m.SMs), "tokens of a tile": int64(m.Tile), "transfers of an IOCB": int64(m.Transfers)} {
		if n < 1 {
			return fmt.Errorf("%d %s, at least one wanted", n, name)
		}
	}
	if sms, ios := m.ring(); sms < 1 || m.Transfers > ios {
		return fmt.Errorf("%d transfers of an IOCB, at most %d wanted: so many have %d SMs of the GPU threads for", m.Transfers, ios, sms)
	}
	if m.MaxTokens < 32*m.BlockTokens {
		return fmt.Errorf("prompts of %d tokens, at least a step of %d wanted", m.MaxTokens, 32*m.BlockTokens)
	}
	for name, v := range map[string]float64{"compute": m.Flops, "memory": m.Memory, "reads": m.ReadRate, "writes": m.WriteRate} {
		if !(v > 0) || math.IsInf(v, 0) {
			return fmt.Errorf("a rate of %s of %v, it must be above 0", name, v)
		}
	}
	if !(m.MixedLoss >= 0 && m.MixedLoss < 1) {
		return fmt.Errorf("reads and writes at once lose %v of the throughput, it must be at least 0 and less than 1", m.MixedLoss)
	}
	return nil
}

// Profile returns what a measurement of the model without noise would find, for launches of 1, 2, 4
// to 64 IOCBs. The model must be one that Check has nothing to say about.
func (m *Model) Profile() *slack.Profile {
	p := &slack.Profile{
		Key: slack.Key{
			Model: "Llama3-8B, simulated", GPU: "H100, simulated",
			Configuration: fmt.Sprintf("%.4g TFLOP/s, reads %.4g GB/s, writes %.4g GB/s", m.Flops/1e12, m.ReadRate/1e9, m.WriteRate/1e9),
		},
		Layers: m.Layers, SMs: m.SMs, StepTokens: 32 * m.BlockTokens, Transfers: m.Transfers, IOCBBytes: m.iocbBytes(),
	}
	steps := m.MaxTokens / p.StepTokens
	for k := range steps + 1 {
		p.Decode.Time = append(p.Decode.Time, seconds(m.decode(k*p.StepTokens)))
		p.Decode.SMs = append(p.Decode.SMs, m.DecodeSMs)
	}
	for i := 1; i <= steps; i++ {
		var r slack.Row
		for k := range steps - i + 1 {
			r.Time = append(r.Time, seconds(m.layer(i*p.StepTokens, k*p.StepTokens)))
			r.SMs = append(r.SMs, m.FreeSMs)
		}
		p.Prefill = append(p.Prefill, r)
	}
	for n := 1; n <= 64; n *= 2 {
		p.Read = append(p.Read, slack.Kernel{IOCBs: n, Time: seconds(m.launch(slack.Read, n)), SMs: m.launchSMs(n)})
		p.Write = append(p.Write, slack.Kernel{IOCBs: n, Time: seconds(m.launch(slack.Write, n)), SMs: m.launchSMs(n)})
	}
	return p
}
