package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/gpu/store"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

// scatterResult is what describing an engine's memory to a device takes.
type scatterResult struct {
	store.Sizes
	TableBytes int64   `json:"table_bytes"` // of the table that was made
	Seconds    float64 `json:"seconds"`
}

func (a *app) scatterCommand() *cobra.Command {
	pool := units.Bytes(60 << 30)
	c := verb("scatter", "Make the table that describes an engine's memory to NVMe, and compare its size with page lists",
		"Make the table that describes an engine's memory to NVMe: 16 bytes (an SGL entry) for each 64 KiB, computed once, where lists of\n"+
			"pages (PRP) would take one page for each 64 KiB (Tutti §3.1). It needs no GPU: addresses are made up, for 32 layers.",
		func(*cobra.Command) error {
			const tensors, object = 64, 128 << 10
			if pool < tensors*object || pool > 4<<40 {
				return cli.Usagef("bench scatter: --pool must be at least %v and at most 4T", units.Bytes(tensors*object))
			}
			m := store.Memory{Slots: int(pool / (tensors * object)), Tensors: make([]store.Tensor, tensors)}
			for i := range m.Tensors {
				m.Tensors[i] = store.Tensor{Base: uint64(i) << 40, Stride: object}
			}
			began := time.Now()
			table, err := store.NewTable(m, object)
			if err != nil {
				return fmt.Errorf("bench scatter: %w", err)
			}
			res := scatterResult{store.SizesOf(int64(pool)), table.Bytes(), time.Since(began).Seconds()}
			return a.print(res, [][]string{
				row("pool", size(res.PoolBytes)), row("pages of 4 KiB", res.Pages), row("lists, one for each 64 KiB", res.Lists),
				row("as PRP lists", size(res.PRPBytes)), row("as SGL entries", size(res.SGLBytes)),
				row("table made", fmt.Sprintf("%s in %.3g s", size(res.TableBytes), res.Seconds)),
			})
		})
	c.Flags().Var(&pool, "pool", "an engine's memory for blocks")
	return c
}
