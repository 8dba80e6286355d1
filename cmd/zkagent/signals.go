package main

import "context"

// handlerKey is the key of the function that gives the signals back.
type handlerKey struct{}

// withoutSignals returns a context that signals do not end, after the handler
// of this program has given them back.
func withoutSignals(ctx context.Context) context.Context {
	if stop, ok := ctx.Value(handlerKey{}).(func()); ok {
		stop()
	}
	return context.WithoutCancel(ctx)
}
