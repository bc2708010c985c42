package kit

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"
)

// FioRead has fio read bytes of a file by io_uring past the page cache, each block
// at most once, and returns how many a second. args name the file, the order, the
// size of blocks and the depth. Error: ErrNoFio.
func FioRead(ctx context.Context, bytes int64, args ...string) (float64, error) {
	program, err := exec.LookPath("fio")
	if err != nil {
		return 0, ErrNoFio
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, slices.Concat([]string{"--name=bench", "--readonly", "--ioengine=io_uring", "--direct=1",
		"--randrepeat=0", "--output-format=json"}, args)...)
	cmd.Env = append(os.Environ(), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1") // huge pages, as ours: a virtual disk is twice as fast with them
	var output Tail
	cmd.Stderr = &output
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("bench: fio: %w: %s", err, &output)
	}
	var report struct {
		Jobs []struct {
			Error int
			Read  struct {
				Bytes int64   `json:"io_bytes"`
				Rate  float64 `json:"bw_bytes"`
			}
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return 0, fmt.Errorf("bench: fio's report: %w", err)
	}
	if len(report.Jobs) != 1 || report.Jobs[0].Error != 0 || report.Jobs[0].Read.Bytes != bytes {
		return 0, fmt.Errorf("bench: fio did not read %d bytes: %+v", bytes, report)
	}
	return report.Jobs[0].Read.Rate, nil
}
