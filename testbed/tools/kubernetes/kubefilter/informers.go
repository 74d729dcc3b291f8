package main

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/tools/cache"
)

// factory serves the plugins' informers from memory. Objects arrive synchronously, so no world waits for
// a list or a watch.
type factory struct {
	// Plugins that ask for another API group fail at once.
	informers.SharedInformerFactory
	byKind map[reflect.Type]*informer
}

func newFactory() *factory { return &factory{byKind: map[reflect.Type]*informer{}} }

func (f *factory) Apps() apps.Interface         { return apps.New(f, "", nil) }
func (f *factory) Core() core.Interface         { return core.New(f, "", nil) }
func (f *factory) Policy() policy.Interface     { return policy.New(f, "", nil) }
func (f *factory) Resource() resource.Interface { return resource.New(f, "", nil) }
func (f *factory) Storage() storage.Interface   { return storage.New(f, "", nil) }

func (f *factory) InformerName() *cache.InformerName { return nil }

func (f *factory) InformerFor(object runtime.Object, _ internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return f.of(object)
}

func (f *factory) of(object runtime.Object) *informer {
	kind := reflect.TypeOf(object)
	if f.byKind[kind] == nil {
		indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		f.byKind[kind] = &informer{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)}
	}
	return f.byKind[kind]
}

// set adds an object, or replaces it, and tells the handlers.
func (f *factory) set(object runtime.Object) {
	i := f.of(object)
	before, exists, err := i.indexer.Get(object)
	check(err)
	check(i.indexer.Add(object))
	for _, handler := range i.handlers {
		if exists {
			handler.OnUpdate(before, object)
		} else {
			handler.OnAdd(object, false)
		}
	}
}

func (f *factory) remove(object runtime.Object) {
	i := f.of(object)
	check(i.indexer.Delete(object))
	for _, handler := range i.handlers {
		handler.OnDelete(object)
	}
}

// informer is a store with event handlers.
type informer struct {
	// The rest of the interface, such as Run, is not called.
	cache.SharedIndexInformer
	indexer  cache.Indexer
	handlers []cache.ResourceEventHandler
}

func (i *informer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handlers = append(i.handlers, handler)
	for _, object := range i.indexer.List() {
		handler.OnAdd(object, true)
	}
	return synced{}, nil
}

func (i *informer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

func (i *informer) AddIndexers(indexers cache.Indexers) error { return i.indexer.AddIndexers(indexers) }
func (i *informer) GetIndexer() cache.Indexer                 { return i.indexer }
func (i *informer) GetStore() cache.Store                     { return i.indexer }
func (i *informer) HasSynced() bool                           { return true }
func (i *informer) HasSyncedChecker() cache.DoneChecker       { return synced{} }

// synced is the state of every informer from the beginning.
type synced struct{}

var done = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (synced) Name() string                          { return "in memory" }
func (synced) Done() <-chan struct{}                 { return done }
func (synced) HasSynced() bool                       { return true }
func (s synced) HasSyncedChecker() cache.DoneChecker { return s }
