"""One pool of short English words from which both generated workloads draw every name.

Held-out repositories and source families use the same words as the training ones, in combinations never seen: what has
to be learned is to copy from an observation, not a vocabulary. No word is a Python keyword, builtin or standard module.
"""

WORDS = tuple(
    """
    acorn alder amber anchor apple apron arrow aspen badge baker basin beach berry birch blade bloom board bonus brass
    bread brick brook brush cabin cable camel candy canoe cargo cedar chalk chart chess cliff cloud clover coral
    cotton crane creek crown daisy delta desk diver dolphin donut dough dream eagle earth ember fable fence fern ferry
    field flame flint flute forest frost fruit garden garlic ginger glacier glove grain grape grove guitar harbor
    hawk hazel hedge heron honey hotel island ivory jacket jelly jungle kayak kettle ladder lagoon lantern lemon lilac
    lily linen lotus magnet mango maple marble meadow melon mint mirror moss nectar nest noble ocean olive onion
    orange orchid otter panda paper parrot peach pearl pebble pepper piano pilot plum pond poppy prairie quartz rabbit
    radio raven ribbon river robin rocket rose saddle sage salmon sand shell silver spruce stone sugar tiger timber
    tulip valley velvet violet walnut willow winter yarn zebra
    """.split()
)
