package web

import (
	"context"
	"sync"
	"time"
)

// How long one reading of ZooKeeper serves everybody who looks, and how long it may take.
const (
	cacheFresh = 3 * time.Second
	cacheWait  = 4 * time.Second
)

// cached keeps one reading of ZooKeeper for all who look at about the same
// time. It is safe for concurrent use.
type cached[T any] struct {
	mu    sync.Mutex // mu guards everything below, and is held while one reads.
	value T
	err   error
	at    time.Time
}

func (c *cached[T]) get(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < cacheFresh {
		return c.value, c.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cacheWait)
	defer cancel()
	value, err := read(ctx)
	c.at, c.err = time.Now(), err
	if err == nil {
		c.value = value
	}
	return c.value, err
}

// memo keeps one value for each key until its source changes. It is safe for
// concurrent use.
type memo[K comparable, V any] struct {
	most int // values; one too many drops all

	mu   sync.Mutex // mu guards kept, and is held while a value is created.
	kept map[K]made[V]
}

type made[V any] struct {
	of    any // comparable
	value V
}

// get returns the value of the same source, or creates a new one. It keeps no value with
// an error.
func (m *memo[K, V]) get(key K, of any, create func() (V, error)) (V, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if had, ok := m.kept[key]; ok && had.of == of {
		return had.value, nil
	}
	value, err := create()
	if err != nil {
		return value, err
	}
	if m.kept == nil || len(m.kept) >= m.most {
		m.kept = map[K]made[V]{}
	}
	m.kept[key] = made[V]{of, value}
	return value, nil
}
