package config

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

const maxPassword = 512

// Password reads the secret that clients must send with AUTH; "" when no
// password_file is set. The file must belong to the reader alone. The secret
// appears in no error and must not be logged.
func (c *Config) Password() (string, error) {
	return secret("password_file", c.PasswordFile)
}

// Secret reads what proves to other ranks that this one belongs to the job; ""
// when no secret_file is set. The file must belong to the reader alone. The
// secret appears in no error and must not be logged.
func (p *Peers) Secret() (string, error) { return secret("peers.secret_file", p.SecretFile) }

// SeedList lists the addresses in Seeds.
func (p *Peers) SeedList() []string {
	return strings.FieldsFunc(p.Seeds, func(r rune) bool { return r == ',' || r == ' ' })
}

// secret reads the first line of the file that key names.
func secret(key, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	bad := func(problem, remedy string) error {
		return &ValueError{Origin: "file", Key: key, Value: quote(file), Problem: problem, Remedy: remedy}
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("config: %s: %w; create it with mode 0600", key, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("config: %s: %w", key, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", bad(fmt.Sprintf("mode %#o lets others read it", info.Mode().Perm()), "chmod 600 "+file)
	}
	line, err := bufio.NewReader(io.LimitReader(f, maxPassword+2)).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("config: %s: %w", key, err)
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" || len(line) > maxPassword {
		return "", bad("first line is empty or too long", fmt.Sprintf("put 1 to %d bytes there", maxPassword))
	}
	return line, nil
}
