package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// logLine is a message in a file of JSON lines; the data in base64, as encoding/json has it.
type logLine struct {
	Seq  uint64 `json:"seq"`
	Data []byte `json:"data"`
}

// WriteLog keeps a log beside its history, so that a run can be judged again.
func WriteLog(path string, messages []Message) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			err = fmt.Errorf("write log: %w", err)
		}
	}()
	out := bufio.NewWriter(file)
	enc := json.NewEncoder(out)
	for _, m := range messages {
		if err := enc.Encode(logLine(m)); err != nil {
			return err
		}
	}
	return out.Flush()
}

// ReadLog reads what [WriteLog] wrote. A file that is cut short is an error: half a log proves nothing.
func ReadLog(path string) ([]Message, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	defer file.Close()
	var messages []Message
	dec := json.NewDecoder(bufio.NewReader(file))
	for {
		var line logLine
		if err := dec.Decode(&line); errors.Is(err, io.EOF) {
			return messages, nil
		} else if err != nil {
			return nil, fmt.Errorf("read log after %d messages: %w", len(messages), err)
		}
		messages = append(messages, Message(line))
	}
}
