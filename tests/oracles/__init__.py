"""What the fast code is held against: slow, obvious, and sharing nothing with it but the definition.

The oracle of a measure is the module of the measure's name. Its function ``value(model, images,
labels, sites)`` gives the measure's main column under the options of its yaml, as a float64 tensor;
``sites`` lists the attention modules as (name, number of heads) in network order.
"""
