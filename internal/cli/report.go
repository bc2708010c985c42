package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Report has write make the file name, whole or not at all, and says so on w; no name is no report.
func Report(w io.Writer, name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	temporary := name + ".part"
	f, err := os.Create(temporary)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	err = errors.Join(write(f), f.Close())
	if err == nil {
		err = os.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("report %s: %w", name, err), os.Remove(temporary))
	}
	fmt.Fprintf(w, "report: %s\n", name)
	return nil
}
